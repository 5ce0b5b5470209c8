// `stagecraft replan RUN_DIR`: whether another plan would pay, now that a run has measured its stages.

#include "partitioner/advice/replan.h"

#include "base/files.h"
#include "base/json.h"
#include "cli/closed_set.h"
#include "cli/commands.h"
#include "cli/number_ranges.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/plan_profile.h"
#include "cli/replan_text.h"
#include "cli/search_line.h"
#include "engine/records/metrics/run_paths.h"
#include "engine/records/report/measured_stages.h"
#include "engine/records/report/report.h"
#include "schedules/generators/registry.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace stagecraft::cli {
namespace {

struct ReplanOptions {
  std::string run_dir;
  std::string profile;
  std::string cluster;
  Attribution attribution = Attribution::devices;  ///< whose plan is written
  Seconds switch_cost{60};                         ///< of stopping at a checkpoint and starting again
  SearchBudget search{};
  std::string output;  ///< where that plan goes; empty: nowhere
  bool json = false;
};

/// The run's config says what it ran on; a copy of a run may be without.
void note_other_device(const ReplanOptions& options, const Profile& profile) {
  try {
    const std::string config = RunPaths{options.run_dir}.config();
    if (!is_there(config)) return;
    const Json json = json::parse_file(config);
    const bool on_gpus = json.is_object() && json.contains("device") && json["device"] == "cuda";
    if (const std::string other = other_device(profile, on_gpus); !other.empty())
      note(fmt::format("{}: {}", options.profile, other));
  } catch (const InputError& error) {
    note(fmt::format("{}; so it is not known whether the profile is of the run's kind of device",
                     error.what()));
  }
}

void run(const ReplanOptions& options) {
  const RunFiles files = read_run(options.run_dir);
  for (const std::string& text : files.left_out) note(text + "; its stages count as planned");
  const RunReport report = make_report(files);
  if (report.timeline_steps == 0 || !report.step.measured) {
    throw InputError(
        {RunPaths{options.run_dir}.timeline(), ""},
        report.restored ? "was lost with the run's end: replan with a run that came to its own end"
        : !report.ended
            ? "is not there, and live/ has no steps that all ranks have written: the run was killed before "
              "its "
              "third, or these files are damaged"
            : "has no steps to measure stages by: expected a run with log.timeline_steps above 0");
  }
  const std::vector<MeasuredStage> measured = measured_stages(report);
  const Profile profile = read_profile(options.profile);
  note_other_device(options, profile);
  const std::vector<Replanned> answers = [&] {
    SearchLine line;
    SearchBudget search = options.search;
    search.progress = [&line](const SearchProgress& progress) { line.show(progress); };
    return stagecraft::replan(files.plan, measured, profile, read_cluster(options.cluster), search);
  }();
  const Replanned& chosen = *std::find_if(answers.begin(), answers.end(),
                                          [&](const Replanned& a) { return a.blame == options.attribution; });
  if (!options.output.empty()) {
    write_json_output(options.output, json::write(chosen.result.best.plan));
  }
  if (options.json) {
    Json json{{"run", options.run_dir},
              {"measured_step_ms", report.step.measured->value * 1e3},
              {"switch_ms", options.switch_cost.value * 1e3}};
    for (const Replanned& answer : answers)
      json["answers"].push_back(answer_json(answer, report, options.switch_cost));
    return print_json(json);
  }
  print(measured_text(report, measured, answers, files.plan));
  print(answers_text(answers, report, options.switch_cost));
  if (!find_schedule(files.plan.schedule.name).synchronous) {
    print("An asynchronous run keeps its stages when it is resumed: another plan is for a new run.\n");
  }
  if (!options.output.empty()) {
    print(fmt::format("\nwritten to {}: the plan if the {} differ\n", options.output,
                      enum_name(options.attribution)));
  }
}

}  // namespace

void add_replan(CLI::App& app) {
  const auto options = std::make_shared<ReplanOptions>();
  CLI::App* verb =
      app.add_subcommand("replan", "say whether another plan would pay, from what a run measured");
  verb->add_option("RUN_DIR", options->run_dir, "directory of a run with log.timeline_steps above 0")
      ->type_name("DIR")
      ->required();
  verb->add_option("--profile", options->profile, "profile.json that the run was planned from")
      ->type_name("FILE")
      ->required()
      ->group("Inputs");
  verb->add_option("--cluster", options->cluster, "cluster.json that the run was planned for")
      ->type_name("FILE")
      ->required()
      ->group("Inputs");
  verb->add_option_function<double>(
          "--switch-seconds", [options](double seconds) { options->switch_cost = Seconds{seconds}; },
          "seconds that stopping and starting again costs (default: 60)")
      ->type_name("SECONDS")
      ->check(from_to(0.0, 1e9))
      ->group("The answer");
  only(verb->add_option_function<std::string>(
               "--attribute",
               [options](const std::string& name) {
                 options->attribution = name == "layers" ? Attribution::layers : Attribution::devices;
               },
               "what slow stages are attributed to in the plan that -o writes (default: devices)")
           ->type_name("devices|layers")
           ->group("The answer"),
       {"devices", "layers"});
  verb->add_option_function<double>(
          "--time-limit", [options](double seconds) { options->search.time_limit = Seconds{seconds}; },
          "seconds to search for each plan (default: a fixed amount of work)")
      ->type_name("SECONDS")
      ->check(from_to(0.0, 1e6))
      ->group("The answer");
  verb->add_option("-o,--output", options->output, "where the new plan goes (default: nowhere)")
      ->type_name("FILE")
      ->group("Output");
  verb->add_flag("--json", options->json, "one JSON document instead of text")->group("Output");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
