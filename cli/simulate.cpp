#include "cli/commands.h"
#include "cli/compare.h"
#include "cli/drawing.h"
#include "cli/output.h"
#include "cli/subject.h"
#include "cli/terminal.h"
#include "schedules/base/error.h"
#include "schedules/base/files.h"
#include "schedules/base/statistics.h"
#include "schedules/base/table.h"
#include "schedules/checker.h"
#include "schedules/collectives.h"
#include "schedules/lowering.h"
#include "schedules/pictures/svg.h"
#include "schedules/pictures/text.h"
#include "schedules/simulator.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::cli {
namespace {

struct SimulateOptions {
  std::string path;
  SubjectRequest request;
  std::string trace, svg;
  Jitter jitter{.samples = 0};
  std::optional<std::string> compare;  ///< schedules to put side by side
  bool unit_costs = false;             ///< instead of the plan's
  std::optional<Seconds> from, until;  ///< what is drawn of it
  bool text = false, no_text = false;  ///< neither: drawn on a terminal where the ranks are few
  bool json = false;
};

/// A simulation of all steps asked for.
struct Priced {
  Simulation simulation;
  Simulation free_links;
  std::vector<LostTime> lost;    ///< a rank
  std::vector<Seconds> samples;  ///< makespans with jitter, ascending; empty unless asked for
  Panel panel;                   ///< empty unless somebody draws it
  int steps = 1;
  std::optional<Seconds> steady_step;  ///< asynchronous only: what a further step adds
};

/// A synchronous step ends with nothing in flight, so n of them are n times one.
void repeat(Simulation& simulation, int times) {
  const double n = times;
  simulation.makespan = simulation.makespan * n;
  for (RankTimes& rank : simulation.ranks) {
    for (Seconds* part : {&rank.forward, &rank.backward, &rank.step, &rank.wait_activation,
                          &rank.wait_gradient, &rank.wait_send, &rank.wait_other, &rank.idle_end}) {
      *part = *part * n;
    }
  }
}

Seconds steady_step(Plan plan, const CostTable& costs) {
  plan.capacity.reset();
  plan.costs = costs;
  return predict(plan).step;
}

void repeat(LostTime& lost, int times) {
  const double n = times;
  for (Seconds* part : {&lost.imbalance, &lost.dependency, &lost.exposed_transfer, &lost.blocked_send,
                        &lost.memory, &lost.barrier}) {
    *part = *part * n;
  }
}

/// The makespan below which `share` of the samples lie.
Seconds quantile_of(const std::vector<Seconds>& samples, double share) {
  std::vector<double> values;
  for (const Seconds sample : samples) values.push_back(sample.value);
  return Seconds{quantile(std::move(values), share)};
}

void require_spread(const CostTable& costs, const Subject& subject, const Jitter& jitter) {
  const bool measured = std::any_of(costs.stages.begin(), costs.stages.end(),
                                    [](const StageCosts& stage) { return stage.spread.has_value(); });
  if (measured || jitter.stage_spread > 0 || jitter.link_spread > 0) return;
  throw InputError(
      {subject.path, "/costs/stages"},
      "no stage has a \"spread\", which a profile's spread_ms would give; say how much times vary "
      "with --stage-spread or --link-spread");
}

/// Whether the terminal gets a picture: where it was asked for, or where it is there and the ranks are few.
bool draws_text(const Subject& subject, const SimulateOptions& options) {
  constexpr int kFewRanks = 16;
  if (options.json || options.no_text) return false;
  return options.text || (standard_output().present && subject.program.placement.world() <= kFewRanks);
}

/// The part of a picture that was asked for.
void cut_to(const SimulateOptions& options, Seconds makespan, Panel& panel) {
  if (!options.from && !options.until) return;
  const Seconds from = options.from.value_or(Seconds{});
  const Seconds until = std::min(makespan, options.until.value_or(makespan));
  if (from >= until) {
    throw InputError(fmt::format("--from {} --to {}: nothing is between; the whole takes {}",
                                 format_duration(from), format_duration(until), format_duration(makespan)));
  }
  cut(panel, from, until);
  panel.timeline.title += fmt::format(", from {} to {}", format_duration(from), format_duration(until));
}

Priced price(const Subject& subject, const SimulateOptions& options) {
  const CostTable* costs = subject.costs();
  const LoweredProgram program = subject.lowered();
  // Memory may be short here: what a plan would take is asked, not whether it fits.
  const Proof proof = prove(program, costs);
  Simulator simulator(program);
  Priced priced;
  priced.simulation = simulator.run(*costs);
  priced.free_links = simulator.run_free_links(*costs);
  priced.lost = simulator.lost_time(*costs);
  if (options.jitter.samples > 0) {
    require_spread(*costs, subject, options.jitter);
    priced.samples = simulator.sample(*costs, options.jitter);
  }
  priced.steps = program.groups();
  if (!subject.synchronous && subject.plan) priced.steady_step = steady_step(*subject.plan, *costs);
  const int repeats = subject.synchronous ? options.request.steps.value_or(1) : 1;
  if (!options.trace.empty() || !options.svg.empty() || draws_text(subject, options))
    priced.panel = draw(subject, program, proof, repeats);
  cut_to(options, priced.simulation.makespan * repeats, priced.panel);
  priced.steps *= repeats;
  repeat(priced.simulation, repeats);
  repeat(priced.free_links, repeats);
  for (LostTime& lost : priced.lost) repeat(lost, repeats);
  return priced;
}

std::string stages_of(const Subject& subject, std::size_t rank) {
  std::string text;
  for (const StageId stage : subject.program.placement.stages_of(Rank{rank}))
    text += fmt::format("{}{}", text.empty() ? "" : ",", stage.value);
  return text;
}

double busy_share(const RankTimes& rank, const Simulation& simulation) {
  return simulation.makespan > Seconds{} ? rank.busy() / simulation.makespan : 0;
}

std::string terminal_picture(const Panel& panel) {
  constexpr int kLinesBeside = 8;  // axis, legend, the prompt and a few lines of the tables
  const Terminal terminal = standard_output();
  TextOptions options{.columns = terminal.columns, .colors = terminal.colors};
  if (terminal.lines > 0)
    options.most_rows = static_cast<std::size_t>(std::max(4, terminal.lines - kLinesBeside));
  return to_text(panel, options);
}

/// An all-reduce of each stage that has replicas, in whole.
struct Reduction {
  StageId stage;
  int width;
  AllReduce time;
};

std::vector<Reduction> reductions(const Subject& subject) {
  std::vector<Reduction> all;
  const CostTable& costs = *subject.costs();
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    std::vector<Rank> members = subject.program.placement.ranks[s];
    if (members.size() < 2) continue;
    std::sort(members.begin(), members.end());
    all.push_back({StageId{s}, static_cast<int>(members.size()),
                   all_reduce(costs.network, members, costs.stages[s].parameters)});
  }
  return all;
}

void print_text(const Subject& subject, const Priced& priced, bool draws) {
  const Simulation& simulation = priced.simulation;
  const Simulation& free = priced.free_links;
  const int steps = priced.steps;
  print(headline(subject) + "\n\n");
  if (draws) print(terminal_picture(priced.panel) + "\n");
  const double added = free.makespan > Seconds{} ? simulation.makespan / free.makespan - 1 : 0;
  Table summary({"<", "simulated", "free links", "<"});
  summary.row({steps == 1 ? "makespan" : fmt::format("makespan of {} steps", steps),
               format_duration(simulation.makespan), format_duration(free.makespan),
               fmt::format("communication adds {}", format_percent(added))});
  if (steps > 1) {
    summary.row({"a step, on average", format_duration(simulation.makespan / steps),
                 format_duration(free.makespan / steps),
                 subject.synchronous ? "" : "fill and drain included"});
  }
  if (priced.steady_step) {
    summary.row({"a step, once steady", format_duration(*priced.steady_step), "", "what one more step adds"});
  }
  if (!priced.samples.empty()) {
    const std::string of = fmt::format("of {} samples{}", priced.samples.size(),
                                       subject.synchronous && steps > 1 ? " of one step" : "");
    summary.row({"with jitter, median", format_duration(quantile_of(priced.samples, 0.5)), "", of});
    summary.row({"with jitter, 95 %", format_duration(quantile_of(priced.samples, 0.95)), "", of});
  }
  summary.row({"bubble", format_percent(simulation.bubble), format_percent(free.bubble),
               "idle share of the mean rank"});
  print(summary.text());
  print(fmt::format("\nTimes in ms{}:\n", steps > 1 ? ", all steps together" : ""));
  Table table({"rank", "stage", "forward", "backward", "step", "wait activation", "wait gradient",
               "wait send", "wait other", "idle at end", "busy"});
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const RankTimes& rank = simulation.ranks[r];
    table.row({std::to_string(r), stages_of(subject, r), format_ms(rank.forward), format_ms(rank.backward),
               format_ms(rank.step), format_ms(rank.wait_activation), format_ms(rank.wait_gradient),
               format_ms(rank.wait_send), format_ms(rank.wait_other), format_ms(rank.idle_end),
               format_percent(busy_share(rank, simulation))});
  }
  print(table.text());
  print("\nWhy ranks are idle, in ms (docs/simulator.md):\n");
  Table lost(
      {"rank", "imbalance", "dependency", "exposed transfer", "blocked send", "memory", "barrier", "idle"});
  for (std::size_t r = 0; r < priced.lost.size(); ++r) {
    const LostTime& rank = priced.lost[r];
    lost.row({std::to_string(r), format_ms(rank.imbalance), format_ms(rank.dependency),
              format_ms(rank.exposed_transfer), format_ms(rank.blocked_send), format_ms(rank.memory),
              format_ms(rank.barrier), format_ms(rank.total())});
  }
  print(lost.text());
  const std::vector<Reduction> reduced = reductions(subject);
  if (!reduced.empty()) print("\nGradients summed over replicas, by the faster of two ways:\n");
  for (const Reduction& reduction : reduced) {
    const AllReduce& time = reduction.time;
    print(fmt::format("  stage {} over {} ranks: ring {}, by level {}; {}\n", reduction.stage.value,
                      reduction.width, format_duration(time.ring),
                      time.by_level ? format_duration(*time.by_level) : "-",
                      time.uses_levels() ? "by level" : "ring"));
  }
}

Json lost_json(const LostTime& lost) {
  return {{"imbalance_ms", lost.imbalance.value * 1e3},
          {"dependency_ms", lost.dependency.value * 1e3},
          {"exposed_transfer_ms", lost.exposed_transfer.value * 1e3},
          {"blocked_send_ms", lost.blocked_send.value * 1e3},
          {"memory_ms", lost.memory.value * 1e3},
          {"barrier_ms", lost.barrier.value * 1e3}};
}

Json priced_json(const Subject& subject, const Priced& priced) {
  const Simulation& simulation = priced.simulation;
  const ScheduleProgram& program = subject.program;
  Json json{
      {"file", subject.path},
      {"schedule", program.schedule},
      {"stages", program.placement.stages()},
      {"ranks", program.placement.world()},
      {"micro_batches", program.group_sizes.front()},
      {"steps", priced.steps},
      {"makespan_ms", simulation.makespan.value * 1e3},
      {"bubble", simulation.bubble},
      {"free_links",
       {{"makespan_ms", priced.free_links.makespan.value * 1e3}, {"bubble", priced.free_links.bubble}}}};
  if (priced.steady_step) json["steady_step_ms"] = priced.steady_step->value * 1e3;
  if (!priced.samples.empty()) {
    json["jitter"] = {{"samples", priced.samples.size()},
                      {"makespan_p50_ms", quantile_of(priced.samples, 0.5).value * 1e3},
                      {"makespan_p95_ms", quantile_of(priced.samples, 0.95).value * 1e3}};
  }
  for (const Reduction& reduction : reductions(subject)) {
    const AllReduce& time = reduction.time;
    json["reductions"].push_back({{"stage", reduction.stage.value},
                                  {"ranks", reduction.width},
                                  {"ring_ms", time.ring.value * 1e3},
                                  {"by_level_ms", time.by_level ? Json(time.by_level->value * 1e3) : Json()},
                                  {"used", time.uses_levels() ? "by_level" : "ring"}});
  }
  json["rank_times"] = Json::array();
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const RankTimes& rank = simulation.ranks[r];
    Json stages = Json::array();
    for (const StageId stage : program.placement.stages_of(Rank{r})) stages.push_back(stage.value);
    json["rank_times"].push_back(Json{{"rank", r},
                                      {"stages", std::move(stages)},
                                      {"forward_ms", rank.forward.value * 1e3},
                                      {"backward_ms", rank.backward.value * 1e3},
                                      {"step_ms", rank.step.value * 1e3},
                                      {"wait_activation_ms", rank.wait_activation.value * 1e3},
                                      {"wait_gradient_ms", rank.wait_gradient.value * 1e3},
                                      {"wait_send_ms", rank.wait_send.value * 1e3},
                                      {"wait_other_ms", rank.wait_other.value * 1e3},
                                      {"idle_at_end_ms", rank.idle_end.value * 1e3},
                                      {"lost", lost_json(priced.lost[r])},
                                      {"busy", busy_share(rank, simulation)}});
  }
  return json;
}

Subject priced_subject(const SimulateOptions& options) {
  Subject subject = read_subject(options.path, options.request);
  const Placement& placement = subject.program.placement;
  if (options.unit_costs) subject.assumed_costs = unit_costs(placement.stages(), placement.world());
  if (subject.costs() == nullptr) {
    throw InputError({subject.path, ""},
                     subject.plan
                         ? "has no \"costs\" to price it with; `stagecraft plan` writes them, and "
                           "--unit-costs does without"
                         : "is a schedule, and has no costs to price it with; with --unit-costs every "
                           "forward and each half of a backward takes 1 ms");
  }
  return subject;
}

void run_comparison(const SimulateOptions& options) {
  if (!options.trace.empty()) throw InputError("--trace is of one schedule; with --compare use --svg");
  if (options.from || options.until)
    throw InputError("--from and --to are of one schedule, not of --compare");
  if (options.text) throw InputError("--text is of one schedule; with --compare use --svg");
  const Subject subject = priced_subject(options);
  Comparison comparison = compare(subject, *options.compare, options.request, !options.svg.empty());
  const bool any = comparison.any();
  if (any && !options.svg.empty()) write_file_atomically(options.svg, to_svg(comparison_panels(comparison)));
  if (options.json) {
    print_json(comparison_json(subject, comparison));
  } else {
    print(fmt::format("{}: stages {}, ranks {}, micro-batches a step {}\n\n", subject.path,
                      subject.plan->stages.size(), subject.program.placement.world(),
                      subject.plan->micro_batches));
    print(comparison_text(subject, comparison));
    if (any && !options.svg.empty()) print(fmt::format("\nPicture: {}\n", options.svg));
  }
  if (!any) throw RefusedError(subject.path + ": none of these schedules can take it");
}

void run(const SimulateOptions& options) {
  if (options.compare) return run_comparison(options);
  const Subject subject = priced_subject(options);
  const Priced priced = [&] {
    try {
      return price(subject, options);
    } catch (const RefusedError& error) {
      throw RefusedError(subject.path + ": " + error.what());
    }
  }();
  // Files first: a path that cannot be written should not follow a page of success.
  if (!options.trace.empty()) write_json_file(options.trace, to_chrome_trace(priced.panel.timeline));
  if (!options.svg.empty()) write_file_atomically(options.svg, to_svg({priced.panel}));
  if (options.json) {
    print_json(priced_json(subject, priced));
    return;
  }
  print_text(subject, priced, draws_text(subject, options));
  if (!options.trace.empty()) print(fmt::format("\nTrace: {} (open it in ui.perfetto.dev)\n", options.trace));
  if (!options.svg.empty())
    print(fmt::format("{}Picture: {}\n", options.trace.empty() ? "\n" : "", options.svg));
}

}  // namespace

void add_simulate(CLI::App& app) {
  const auto options = std::make_shared<SimulateOptions>();
  CLI::App* verb =
      app.add_subcommand("simulate", "predict what a plan's step takes, and where its time goes");
  verb->add_option("PLAN", options->path, "plan.json with its costs; with --unit-costs any plan or schedule")
      ->required();
  verb->add_option("--micro-batches", options->request.micro_batches, "of a step, instead of the plan's")
      ->check(CLI::Range(1, kMostMicroBatches))
      ->type_name("N");
  verb->add_option("--steps", options->request.steps,
                   "how many; default: one, or for an asynchronous schedule until it is steady")
      ->check(CLI::Range(1, 10'000))
      ->type_name("N");
  verb->add_option("--jitter", options->jitter.samples,
                   "simulate as often with times that vary, and say what the median and 95 % stay below")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("SAMPLES");
  verb->add_option("--seed", options->jitter.seed, "of the jitter")->type_name("N");
  verb->add_option("--stage-spread", options->jitter.stage_spread,
                   "interquartile range over median of the times of stages whose costs have no spread")
      ->check(CLI::Range(0.0, 10.0))
      ->type_name("SHARE");
  verb->add_option("--link-spread", options->jitter.link_spread, "the same of transfers")
      ->check(CLI::Range(0.0, 10.0))
      ->type_name("SHARE");
  verb->add_option("--trace", options->trace, "write a trace for ui.perfetto.dev")->type_name("FILE.json");
  verb->add_option("--svg", options->svg, "write a picture")->type_name("FILE.svg");
  CLI::Option* text =
      verb->add_flag("--text", options->text, "draw it here as text; unasked on a terminal, up to 16 ranks");
  verb->add_flag("--no-text", options->no_text, "do not draw it as text")->excludes(text);
  const auto add_moment = [verb](const char* name, std::optional<Seconds>& moment, const char* what) {
    verb->add_option_function<double>(
            name, [&moment](double ms) { moment = Seconds{ms / 1e3}; }, what)
        ->check(CLI::Range(0.0, kMostMilliseconds))
        ->type_name("MS");
  };
  add_moment("--from", options->from, "draw and trace from this moment on: a closer look");
  add_moment("--to", options->until, "draw and trace up to this moment");
  verb->add_option("--compare", options->compare,
                   "put the plan under these schedules, side by side; --svg draws all of them")
      ->type_name("NAME,NAME,...|all");
  verb->add_flag("--unit-costs", options->unit_costs,
                 "forwards and the halves of backwards take 1 ms, all else nothing: draws any schedule file");
  verb->add_flag("--json", options->json, "one JSON document instead of text");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
