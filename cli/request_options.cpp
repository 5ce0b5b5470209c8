#include "cli/request_options.h"

#include "base/json.h"
#include "base/text.h"
#include "cli/closed_set.h"
#include "cli/input_program.h"
#include "cli/number_ranges.h"
#include "cli/plan_profile.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace stagecraft::cli {
namespace {

constexpr int kMicroBatches = 8;
constexpr const char* kInputs = "Inputs";
constexpr const char* kStep = "The step";
constexpr const char* kStages = "Stages";

void take_micro_batches(const std::string& text, RequestKind kind, RequestOptions& options) {
  const bool takes_auto = kind == RequestKind::several_plans;
  if (text == "auto" && takes_auto) {
    options.every_size = true;
    return;
  }
  std::string_view left = text;
  const auto number = take_number(left);
  if (!number || !left.empty() || *number < 1 || *number > kMostMicroBatches) {
    throw InputError({"--micro-batches", ""},
                     fmt::format("\"{}\": expected 1 to {}{}", text, kMostMicroBatches,
                                 takes_auto ? ", or \"auto\"" : ""));
  }
  options.micro_batches = number;
}

/// What an option given has to say about a request.
template <typename Given, typename Asked>
void put(const std::optional<Given>& given, Asked& asked) {
  if (given) asked = *given;  // NOLINT(bugprone-optional-value-conversion): Asked need not be optional
}

void apply(const RequestOptions& options, PlanRequest& request) {
  if (options.schedule) options.schedule->apply_to(request.schedule);
  put(options.micro_batches, request.micro_batches);
  put(options.micro_batch_size, request.micro_batch_size);
  put(options.virtual_stages, request.virtual_stages);
  if (options.recompute) request.recompute = one_setting(*options.recompute);
  if (options.stages || !options.cuts.empty()) {
    request.stages = options.stages;
    request.cuts = options.cuts;
  }
  if (!options.widths.empty()) request.widths = options.widths;
  if (options.time_limit) request.search.time_limit = Seconds{*options.time_limit};
}

PlanInputs inputs_of_files(const RequestOptions& options) {
  PlanInputs inputs;
  inputs.profile = read_chain(options.profile, options.micro_batch_size);
  inputs.cluster = read_cluster(options.cluster);
  PlanRequest& request = inputs.request;
  request.micro_batches = kMicroBatches;
  request.micro_batch_size = options.every_size && !options.micro_batch_size
                                 ? inputs.profile.measurements.front().micro_batch
                                 : size_to_plan(inputs.profile, options.profile, options.micro_batch_size);
  // Whoever runs it, replicas are worth having; a run's config says itself what it wants.
  request.replicate = options.replicate.value_or(true);
  return inputs;
}

PlanInputs inputs_of_config(const RequestOptions& options, const std::string& verb) {
  if (const std::string kind = kind_of_file(options.config); !kind.empty() && kind != "run config") {
    throw InputError(
        {options.config, ""},
        fmt::format("is a {}; {} takes a run config (run.json), or --profile and --cluster", kind, verb));
  }
  PlanInputs inputs = config_plan_inputs(options.config, options.overrides, options.profile, options.cluster);
  inputs.request.replicate = options.replicate.value_or(false);
  return inputs;
}

void add_schedule_option(CLI::App& verb, RequestOptions& options) {
  offer(verb.add_option_function<std::string>(
                "--schedule",
                [&options](const std::string& text) {
                  options.schedule = schedule_asked(text, {"--schedule", ""});
                },
                "one schedule, with its settings behind a colon (default: the config's, or 1f1b)")
            ->type_name("NAME[:SETTING,...]")
            ->group(kStep),
        schedule_words());
}

}  // namespace

PlanInputs RequestOptions::read(const std::string& verb) const {
  if (config.empty() && (profile.empty() || cluster.empty())) {
    const char* missing = profile.empty() == cluster.empty() ? "nothing to plan"
                          : profile.empty()                  ? "--profile is missing"
                                                             : "--cluster is missing";
    throw InputError(
        fmt::format("{0}: {1}; give CONFIG, or --profile and --cluster:\n"
                    "  stagecraft {0} run.json\n"
                    "  stagecraft {0} --profile profile.json --cluster cluster.json\n"
                    "See `stagecraft {0} --help`.",
                    verb, missing));
  }
  if (!widths.empty() && replicate == false) {
    throw InputError({"--widths", ""},
                     "says how many replicas each stage has, --no-replicate that none has any: "
                     "give one of the two");
  }
  if (!overrides.empty() && config.empty()) {
    throw InputError({"--set", ""}, "is for the keys of a run config, and none is given: give CONFIG");
  }
  PlanInputs inputs = config.empty() ? inputs_of_files(*this) : inputs_of_config(*this, verb);
  apply(*this, inputs.request);
  return inputs;
}

void add_config(CLI::App& verb, RequestOptions& options) {
  verb.add_option("CONFIG", options.config,
                  "run.json; its model is measured now unless --profile has it (or give --profile and "
                  "--cluster)")
      ->type_name("FILE");
}

void add_request_options(CLI::App& verb, RequestOptions& options, RequestKind kind) {
  verb.add_option("--profile", options.profile,
                  "profile.json of the model, or a graph of PipeDream's profiler (its name ends in .txt)")
      ->type_name("FILE")
      ->group(kInputs);
  verb.add_option("--cluster", options.cluster,
                  "cluster.json: devices, links, memory (default: the config's, or this machine)")
      ->type_name("FILE")
      ->group(kInputs);
  verb.add_option("--set", options.overrides,
                  "a value in the config, as in --set train_batch_size=64; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->group(kInputs);
  if (kind == RequestKind::one_plan) add_schedule_option(verb, options);
  const bool takes_auto = kind == RequestKind::several_plans;
  verb.add_option_function<std::string>(
          "--micro-batches",
          [&options, kind](const std::string& text) { take_micro_batches(text, kind, options); },
          takes_auto ? "micro-batches per step; auto: as many as fill --batch, of every size in the profile "
                       "(default: the config's, or 8)"
                     : "micro-batches per step (default: the config's, or 8)")
      ->type_name(takes_auto ? "N|auto" : "N")
      ->group(kStep);
  verb.add_option("--micro-batch-size", options.micro_batch_size,
                  "samples per micro-batch, a size in the profile (default: the config's, or the only one)")
      ->type_name("N")
      ->check(from_to(std::int64_t{1}, std::int64_t{1} << 40))
      ->group(kStep);
  only(verb.add_option_function<std::string>(
               "--recompute",
               [&options](const std::string& name) {
                 options.recompute = json::read<RecomputeAsked>(Json(name), {"--recompute", ""});
               },
               "which forwards are repeated before their backward, so that only their inputs are kept: "
               "none, all, or all_but_last micro-batch of a step; auto: for each stage the least that fits "
               "(default: the config's, or none)")
           ->type_name("WHICH")
           ->group(kStep),
       {enum_names<RecomputeAsked>.begin(), enum_names<RecomputeAsked>.end()});
  verb.add_option("--stages", options.stages, "number of stages (default: the fastest)")
      ->type_name("N")
      ->check(from_to(1, 1'000'000))
      ->group(kStages);
  verb.add_option("--virtual-stages", options.virtual_stages,
                  "stages per rank, for schedules that take several (default: the schedule's)")
      ->type_name("N")
      ->check(from_to(1, 1024))
      ->group(kStages);
  add_numbers(verb, "--cuts", options.cuts, 1, 1'000'000,
              "your own cuts: the first layers of stages 1, 2, ... (default: the fastest)")
      ->type_name("I,J,...")
      ->group(kStages);
  add_numbers(verb, "--widths", options.widths, 1, 1'000'000,
              "your own replicas per stage, in a loop or V per position (default: the fastest)")
      ->type_name("N,M,...")
      ->group(kStages);
  CLI::Option* replicate = verb.add_flag_callback(
                                   "--replicate", [&options] { options.replicate = true; },
                                   "stages may have several replicas (default: yes, but not for CONFIG)")
                               ->group(kStages);
  verb.add_flag_callback(
          "--no-replicate", [&options] { options.replicate = false; }, "no stage has replicas")
      ->excludes(replicate)
      ->group(kStages);
  verb.add_option("--time-limit", options.time_limit,
                  "seconds to search for cuts and widths, and with schedule auto for an order (default: a "
                  "fixed amount of work, which gives the same plan every time)")
      ->type_name("SECONDS")
      ->check(from_to(0.0, 1e6))
      ->group("Search");
}

}  // namespace stagecraft::cli
