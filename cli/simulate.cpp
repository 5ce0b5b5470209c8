#include "base/error.h"
#include "base/table.h"
#include "cli/commands.h"
#include "cli/input_program.h"
#include "cli/number_ranges.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/priced.h"
#include "cli/terminal.h"
#include "schedules/interchange/chrome_trace.h"
#include "schedules/pictures/svg.h"
#include "schedules/pictures/text.h"

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
  InputRequest request;
  std::string trace, svg;
  Jitter jitter{.samples = 0};
  bool unit_costs = false;             ///< instead of the plan's
  std::optional<Seconds> from, until;  ///< what is drawn of it
  bool text = false, no_text = false;  ///< neither: drawn on a terminal where the ranks are few
  bool json = false;
};

/// Whether the terminal gets a picture: where it was asked for, or where it is there and the ranks are few.
bool draws_text(const InputProgram& input, const SimulateOptions& options) {
  constexpr int kFewRanks = 16;
  if (options.json || options.no_text) return false;
  return options.text || (standard_output().present && input.program.placement.world() <= kFewRanks);
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

void run(const SimulateOptions& options) {
  const InputProgram input = priced_input(options.path, options.request, options.unit_costs);
  const bool draws_here = draws_text(input, options);
  SimulationReport priced = [&] {
    try {
      return price(input, {.steps = options.request.steps,
                           .jitter = options.jitter,
                           .draws = draws_here || !options.trace.empty() || !options.svg.empty()});
    } catch (const RefusedError& error) {
      throw RefusedError(input.path + ": " + error.what());
    }
  }();
  cut_to(options, priced.simulation.makespan, priced.panel);
  // Files first: a path that cannot be written should not follow a page of success.
  if (!options.trace.empty()) write_json_output(options.trace, to_chrome_trace(priced.panel.timeline));
  if (!options.svg.empty()) write_output(options.svg, to_svg({priced.panel}));
  if (options.json) {
    print_json(priced_json(input, priced));
    return;
  }
  print(headline(input) + "\n\n");
  if (draws_here) print_drawing(terminal_picture(priced.panel) + "\n");
  print(priced_text(input, priced));
  if (!options.trace.empty()) print(fmt::format("\nTrace: {} (open it in ui.perfetto.dev)\n", options.trace));
  if (!options.svg.empty())
    print(fmt::format("{}Picture: {}\n", options.trace.empty() ? "\n" : "", options.svg));
}

}  // namespace

void add_simulate(CLI::App& app) {
  constexpr const char* kSimulated = "The step";
  constexpr const char* kVarying = "Times that vary";
  constexpr const char* kPictures = "Pictures";
  const auto options = std::make_shared<SimulateOptions>();
  CLI::App* verb =
      app.add_subcommand("simulate", "predict what a plan's step takes, and where its time goes");
  verb->add_option("PLAN", options->path,
                   "plan.json with its costs, or run.json for the plan that train would make of it; with "
                   "--unit-costs any plan or schedule")
      ->type_name("FILE")
      ->required();
  verb->add_option("--micro-batches", options->request.micro_batches,
                   "micro-batches per step (default: the plan's)")
      ->check(from_to(1, kMostMicroBatches))
      ->type_name("N")
      ->group(kSimulated);
  verb->add_option("--steps", options->request.steps,
                   "steps to simulate (default: one; without a flush, until the pipeline is steady)")
      ->check(from_to(1, 10'000))
      ->type_name("N")
      ->group(kSimulated);
  verb->add_flag(
          "--unit-costs", options->unit_costs,
          "take 1 ms for forwards and for each half of a backward, and nothing for all else; draws any "
          "schedule file (default: the plan's costs)")
      ->group(kSimulated);
  verb->add_option("--jitter", options->jitter.samples,
                   "simulate N times with times that vary, and print the median and the 95th percentile "
                   "(default: not at all)")
      ->check(from_to(1, 1'000'000))
      ->type_name("N")
      ->group(kVarying);
  verb->add_option("--seed", options->jitter.seed, "seed of the jitter (default: 0)")
      ->type_name("N")
      ->check(not_negative<std::uint64_t>())
      ->group(kVarying);
  verb->add_option("--stage-spread", options->jitter.stage_spread,
                   "interquartile range over median, for stages whose costs have no spread (default: 0)")
      ->check(from_to(0.0, 10.0))
      ->type_name("SHARE")
      ->group(kVarying);
  verb->add_option("--link-spread", options->jitter.link_spread,
                   "interquartile range over median, for transfers (default: 0)")
      ->check(from_to(0.0, 10.0))
      ->type_name("SHARE")
      ->group(kVarying);
  verb->add_option("--svg", options->svg, "write a picture (default: none)")
      ->type_name("FILE.svg")
      ->group(kPictures);
  verb->add_option("--trace", options->trace, "write a trace for ui.perfetto.dev (default: none)")
      ->type_name("FILE.json")
      ->group(kPictures);
  CLI::Option* text =
      verb->add_flag("--text", options->text, "draw it here as text (default: on a terminal, up to 16 ranks)")
          ->group(kPictures);
  verb->add_flag("--no-text", options->no_text, "do not draw it as text")->excludes(text)->group(kPictures);
  const auto add_moment = [verb](const char* name, std::optional<Seconds>& moment, const char* what) {
    verb->add_option_function<double>(
            name, [&moment](double ms) { moment = Seconds{ms / 1e3}; }, what)
        ->check(from_to(0.0, kMostMilliseconds))
        ->type_name("MS")
        ->group(kPictures);
  };
  add_moment("--from", options->from, "draw and trace from this moment on, in ms (default: 0)");
  add_moment("--to", options->until, "draw and trace up to this moment, in ms (default: the end)");
  verb->add_flag("--json", options->json, "one JSON document instead of text")->group("Output");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
