#include "cli/commands.h"
#include "cli/output.h"
#include "cli/subject.h"
#include "schedules/base/error.h"
#include "schedules/base/files.h"
#include "schedules/base/table.h"
#include "schedules/checker.h"
#include "schedules/lowering.h"
#include "schedules/simulator.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace stagecraft::cli {
namespace {

struct SimulateOptions {
  std::string path;
  SubjectRequest request;
  std::string trace, svg;
  bool json = false;
};

/// A simulation of all steps asked for.
struct Priced {
  Simulation simulation;
  Simulation free_links;
  Timeline timeline;  ///< empty unless somebody draws it
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

void repeat(Timeline& timeline, Seconds period, int times) {
  std::vector<Event> all;
  all.reserve(timeline.events.size() * static_cast<std::size_t>(times));
  const auto& events = timeline.events;
  for (auto first = events.begin(); first != events.end();) {  // rank by rank, to stay sorted
    auto last = first;
    while (last != events.end() && last->rank == first->rank) ++last;
    for (int i = 0; i < times; ++i) {
      for (auto event = first; event != last; ++event) {
        Event moved = *event;
        moved.begin += period * static_cast<double>(i);
        moved.end += period * static_cast<double>(i);
        moved.step += i;
        all.push_back(moved);
      }
    }
    first = last;
  }
  timeline.events = std::move(all);
}

Seconds steady_step(Plan plan) {
  plan.capacity.reset();
  return predict(plan).step;
}

Priced price(const Subject& subject, const SimulateOptions& options) {
  const CostTable* costs = subject.costs();
  if (costs == nullptr) {
    throw InputError({subject.path, ""},
                     subject.plan
                         ? "has no \"costs\" to price it with; `stagecraft plan` writes them"
                         : "is a schedule, and has no costs to price it with; simulate takes a plan");
  }
  const LoweredProgram program = subject.lowered();
  prove(program, costs);  // memory may be short here: what a plan would take is asked, not whether it fits
  Simulator simulator(program);
  Priced priced;
  priced.timeline.title = headline(subject);
  const bool draws = !options.trace.empty() || !options.svg.empty();
  priced.simulation = simulator.run(*costs, draws ? &priced.timeline : nullptr);
  priced.free_links = simulator.run_free_links(*costs);
  priced.steps = program.groups();
  if (!subject.synchronous) priced.steady_step = steady_step(*subject.plan);
  if (subject.synchronous && options.request.steps) {
    priced.steps = *options.request.steps;
    repeat(priced.timeline, priced.simulation.makespan, priced.steps);
    repeat(priced.simulation, priced.steps);
    repeat(priced.free_links, priced.steps);
  }
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

void print_text(const Subject& subject, const Priced& priced) {
  const Simulation& simulation = priced.simulation;
  const Simulation& free = priced.free_links;
  const int steps = priced.steps;
  print(headline(subject) + "\n\n");
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
                                      {"busy", busy_share(rank, simulation)}});
  }
  return json;
}

void run(const SimulateOptions& options) {
  const Subject subject = read_subject(options.path, options.request);
  const Priced priced = [&] {
    try {
      return price(subject, options);
    } catch (const RefusedError& error) {
      throw RefusedError(subject.path + ": " + error.what());
    }
  }();
  // Files first: a path that cannot be written should not follow a page of success.
  if (!options.trace.empty()) write_json_file(options.trace, to_chrome_trace(priced.timeline));
  if (!options.svg.empty()) write_file_atomically(options.svg, to_svg(priced.timeline));
  if (options.json) {
    print_json(priced_json(subject, priced));
    return;
  }
  print_text(subject, priced);
  if (!options.trace.empty()) print(fmt::format("\nTrace: {} (open it in ui.perfetto.dev)\n", options.trace));
  if (!options.svg.empty())
    print(fmt::format("{}Picture: {}\n", options.trace.empty() ? "\n" : "", options.svg));
}

}  // namespace

void add_simulate(CLI::App& app) {
  const auto options = std::make_shared<SimulateOptions>();
  CLI::App* verb =
      app.add_subcommand("simulate", "predict what a plan's step takes, and where its time goes");
  verb->add_option("PLAN", options->path, "plan.json with its costs")->required();
  verb->add_option("--micro-batches", options->request.micro_batches, "of a step, instead of the plan's")
      ->check(CLI::Range(1, kMostMicroBatches))
      ->type_name("N");
  verb->add_option("--steps", options->request.steps,
                   "how many; default: one, or for an asynchronous schedule until it is steady")
      ->check(CLI::Range(1, 10'000))
      ->type_name("N");
  verb->add_option("--trace", options->trace, "write a trace for ui.perfetto.dev")->type_name("FILE.json");
  verb->add_option("--svg", options->svg, "write a picture")->type_name("FILE.svg");
  verb->add_flag("--json", options->json, "one JSON document instead of text");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
