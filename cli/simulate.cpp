#include "stagecraft/base/error.h"
#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "stagecraft/base/table.h"
#include "stagecraft/cli/commands.h"
#include "stagecraft/cli/compare.h"
#include "stagecraft/cli/output.h"
#include "stagecraft/cli/priced.h"
#include "stagecraft/cli/subject.h"
#include "stagecraft/cli/terminal.h"
#include "stagecraft/schedules/interchange/chrome_trace.h"
#include "stagecraft/schedules/pictures/svg.h"
#include "stagecraft/schedules/pictures/text.h"
#include "stagecraft/schedules/program/program_text.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

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

/// Whether the terminal gets a picture: where it was asked for, or where it is there and the ranks are few.
bool draws_text(const InputProgram& subject, const SimulateOptions& options) {
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

std::string terminal_picture(const Panel& panel) {
  constexpr int kLinesBeside = 8;  // axis, legend, the prompt and a few lines of the tables
  const Terminal terminal = standard_output();
  TextOptions options{.columns = terminal.columns, .colors = terminal.colors};
  if (terminal.lines > 0)
    options.most_rows = static_cast<std::size_t>(std::max(4, terminal.lines - kLinesBeside));
  return to_text(panel, options);
}

InputProgram priced_subject(const SimulateOptions& options) {
  InputProgram subject = read_subject(options.path, options.request);
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
  const InputProgram subject = priced_subject(options);
  Comparison comparison = compare(subject, *options.compare, options.request, !options.svg.empty());
  const bool any = comparison.any();
  if (any && !options.svg.empty()) write_file_atomically(options.svg, to_svg(comparison_panels(comparison)));
  if (options.json) {
    print_json(comparison_json(subject, comparison));
  } else {
    print(fmt::format("{}: stages {}, ranks {}, micro-batches per step {}\n\n", subject.path,
                      subject.plan->stages.size(), subject.program.placement.world(),
                      subject.plan->micro_batches));
    print(comparison_text(subject, comparison));
    if (any && !options.svg.empty()) print(fmt::format("\nPicture: {}\n", options.svg));
  }
  if (!any) throw RefusedError(subject.path + ": none of these schedules can take it");
}

void run(const SimulateOptions& options) {
  if (options.compare) return run_comparison(options);
  const InputProgram subject = priced_subject(options);
  const bool draws_here = draws_text(subject, options);
  SimulationReport priced = [&] {
    try {
      return price(subject, {.steps = options.request.steps,
                             .jitter = options.jitter,
                             .draws = draws_here || !options.trace.empty() || !options.svg.empty()});
    } catch (const RefusedError& error) {
      throw RefusedError(subject.path + ": " + error.what());
    }
  }();
  cut_to(options, priced.simulation.makespan, priced.panel);
  // Files first: a path that cannot be written should not follow a page of success.
  if (!options.trace.empty()) write_json_file(options.trace, to_chrome_trace(priced.panel.timeline));
  if (!options.svg.empty()) write_file_atomically(options.svg, to_svg({priced.panel}));
  if (options.json) {
    print_json(priced_json(subject, priced));
    return;
  }
  print(headline(subject) + "\n\n");
  if (draws_here) print_drawing(terminal_picture(priced.panel) + "\n");
  print(priced_text(subject, priced));
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
