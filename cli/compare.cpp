// `stagecraft compare`: plans under several schedules and micro-batch sizes, time against memory, or one
// plan's stages under other schedules.

#include "base/error.h"
#include "cli/choose.h"
#include "cli/closed_set.h"
#include "cli/commands.h"
#include "cli/number_ranges.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/plan_under.h"
#include "cli/planning.h"
#include "cli/search_line.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <memory>

namespace stagecraft::cli {
namespace {

struct CompareOptions {
  RequestOptions request;  ///< its config may be a plan
  std::string schedules = "all";
  std::optional<std::int64_t> batch;
  ChooseOptions choose;
  std::optional<int> steps;  ///< of a plan
  bool unit_costs = false;   ///< of a plan
};

/// What is asked of a plan that is there already. Its stages and their costs stay, so options that would plan
/// others are refused.
void compare_plan(const CompareOptions& options, const CLI::App& verb) {
  for (const char* taken_by_plans :
       {"--profile", "--cluster", "--micro-batch-size", "--recompute", "--stages", "--virtual-stages",
        "--cuts", "--widths", "--replicate", "--time-limit", "--batch", "--pareto", "--jitter", "--choose-by",
        "--output", "--tables"}) {
    if (verb.count(taken_by_plans) == 0) continue;
    throw InputError(
        {taken_by_plans, ""},
        fmt::format("plans anew, but {} is compared as it is: its stages stay. Give a run config, "
                    "or --profile and --cluster",
                    options.request.config));
  }
  if (verb.count("--set") > 0) {
    throw InputError({"--set", ""},
                     fmt::format("is for the keys of a run config, and {} is none", options.request.config));
  }
  if (options.request.every_size) {
    throw InputError({"--micro-batches", ""}, "auto is for planning; a plan has its micro-batch size");
  }
  compare_under(
      {.path = options.request.config,
       .schedules = schedules_asked(options.schedules, AllSchedules::registered, {"--schedules", ""}),
       .request = {.micro_batches = options.request.micro_batches, .steps = options.steps},
       .unit_costs = options.unit_costs,
       .svg = options.choose.svg,
       .as_json = options.choose.output.as_json});
}

void check_plannable(const CompareOptions& options) {
  if (options.steps || options.unit_costs) {
    throw InputError({options.steps ? "--steps" : "--unit-costs", ""},
                     "is for `stagecraft compare PLAN`, which simulates one plan's stages");
  }
  if (!options.request.every_size) return;
  if (options.request.config.empty() && !options.batch) {
    throw InputError({"--micro-batches", ""}, "auto: say with --batch how many samples a step has");
  }
  if (options.request.micro_batch_size) {
    throw InputError({"--micro-batch-size", ""},
                     "is what --micro-batches auto and --batch compare: drop one");
  }
}

void choose_among(const CompareOptions& options, const std::vector<ScheduleAsked>& schedules) {
  SearchLine line;
  const PlanInputs inputs = options.request.read("compare");
  ChoiceRequest request{.schedules = {},
                        .batchings = {{inputs.request.micro_batch_size, inputs.request.micro_batches}},
                        .falling_caps = options.choose.pareto,
                        .base = inputs.request};
  for (const ScheduleAsked& schedule : schedules) {
    request.schedules.push_back(schedule.name);
    ScheduleChoice& settings = request.base.schedule;
    settings.warmup_extra = schedule.warmup_extra.value_or(settings.warmup_extra);
    settings.vertical_sync = schedule.vertical_sync.value_or(settings.vertical_sync);
  }
  request.base.search.progress = [&line](const SearchProgress& progress) { line.show(progress); };
  request.progress = [&line](const std::string& schedule, int tried, int all) {
    line.show(schedule, tried, all);
  };
  if (options.request.every_size) {
    const std::int64_t samples =
        options.batch.value_or(inputs.request.micro_batch_size * inputs.request.micro_batches);
    request.batchings = batchings_of(inputs.profile, samples);
    std::vector<std::int64_t> unfilled;
    for (const Batching& batching : request.batchings) {
      if (samples % batching.micro_batch_size != 0) unfilled.push_back(batching.micro_batch_size);
    }
    if (!unfilled.empty()) {
      note(
          fmt::format("{} samples are no whole number of micro-batches of {}: the last one is priced as full",
                      samples, fmt::join(unfilled, " or ")));
    }
  }
  // A run's config says what is recomputed, and train holds the plan to it.
  if (options.choose.pareto && options.request.config.empty() && !options.request.recompute) {
    request.base.recompute = std::nullopt;
  }
  choose_from(inputs.profile, inputs.cluster, request, options.choose, inputs.machine);
}

void run(CompareOptions options, const CLI::App& verb) {
  require_output(options.choose.svg, "picture");
  if (!options.request.config.empty() && kind_of_file(options.request.config) != "run config") {
    return compare_plan(options, verb);
  }
  if (options.batch && options.request.micro_batches) {
    throw InputError({"--batch", ""},
                     "is filled with as many micro-batches as it takes: drop --micro-batches");
  }
  options.request.every_size = options.request.every_size || options.batch.has_value();
  check_plannable(options);
  const std::vector<ScheduleAsked> schedules =
      schedules_asked(options.schedules, AllSchedules::synchronous, {"--schedules", ""});
  if (schedules.size() > 1 || options.choose.pareto || options.request.every_size) {
    return choose_among(options, schedules);
  }
  if (!options.choose.svg.empty()) {
    throw InputError({"--svg", ""},
                     "draws several schedules or sizes, or --pareto; there is one of each here");
  }
  // One schedule, one size: stage counts are what is left to compare, and plan has the table.
  options.request.schedule = schedules.front();
  plan_asked("compare", options.request, options.choose.output);
}

void add_own_options(CLI::App& verb, CompareOptions& options) {
  constexpr const char* kCompared = "What to compare";
  offer(
      verb.add_option("--schedules", options.schedules,
                      "schedules, each with its settings behind a colon; all: those that train as one device "
                      "would, and of a plan every schedule")
          ->capture_default_str()
          ->type_name("NAME,NAME,...|all")
          ->group(kCompared),
      [] {
        std::vector<std::string> words = schedule_words();
        words.emplace_back("all");
        return words;
      }());
  verb.add_option("--batch", options.batch,
                  "samples per step, in micro-batches of every size in the profile (default: one size, and "
                  "--micro-batches of it)")
      ->type_name("N")
      ->check(from_to(std::int64_t{1}, std::int64_t{1} << 40))
      ->group(kCompared);
  verb.add_flag("--pareto", options.choose.pareto,
                "all plans that no other beats in both step time and memory (default: the fastest of each "
                "schedule)")
      ->group(kCompared);
  CLI::Option* jitter = verb.add_option_function<int>(
      "--jitter", [&options](int samples) { options.choose.output.jitter = Jitter{.samples = samples}; },
      "simulate each of the five best plans N times, with times drawn from the spreads in the profile; all "
      "plans see the same draws (default: not at all)");
  jitter->check(from_to(1, 1'000'000))->type_name("N")->group(kCompared);
  only(verb.add_option_function<std::string>(
               "--choose-by",
               [&options](const std::string& by) {
                 options.choose.output.choose_by = by == "p95" ? ChooseBy::p95 : ChooseBy::step;
               },
               "take the plan with the shortest step, or with the shortest 95th percentile under --jitter "
               "(default: step)")
           ->type_name("step|p95")
           ->needs(jitter)
           ->group(kCompared),
       {"step", "p95"});
}

void add_plan_options(CLI::App& verb, CompareOptions& options) {
  constexpr const char* kOfPlan = "Of a PLAN alone";
  verb.add_option("--steps", options.steps,
                  "steps to simulate (default: one; without a flush, what one more step adds)")
      ->check(from_to(1, 10'000))
      ->type_name("N")
      ->group(kOfPlan);
  verb.add_flag(
          "--unit-costs", options.unit_costs,
          "take 1 ms for forwards and for each half of a backward, and nothing for all else (default: the "
          "plan's costs)")
      ->group(kOfPlan);
}

}  // namespace

void add_compare(CLI::App& app) {
  const auto options = std::make_shared<CompareOptions>();
  CLI::App* verb =
      app.add_subcommand("compare", "compare schedules, micro-batch sizes, and step time against memory");
  verb->add_option("INPUT", options->request.config,
                   "run.json to plan for (or give --profile and --cluster), or plan.json, whose stages stay")
      ->type_name("FILE");
  add_own_options(*verb, *options);
  add_request_options(*verb, options->request, RequestKind::several_plans);
  add_plan_options(*verb, *options);
  verb->add_option("--svg", options->choose.svg,
                   "a picture: step time against memory; of a PLAN, each schedule's timeline (default: none)")
      ->type_name("FILE.svg")
      ->group("Output");
  add_plan_output(*verb, options->choose.output, "one JSON document: every plan or schedule compared");
  verb->footer("Schedules:\n" + schedules_text());
  verb->callback([options, verb] { run(*options, *verb); });
}

}  // namespace stagecraft::cli
