// `stagecraft replan RUN_DIR`: whether another plan would pay, now that a run has measured its stages.

#include "stagecraft/partitioner/replan.h"

#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "stagecraft/base/table.h"
#include "stagecraft/cli/closed_set.h"
#include "stagecraft/cli/commands.h"
#include "stagecraft/cli/output.h"
#include "stagecraft/engine/report/report.h"
#include "stagecraft/schedules/generators/registry.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
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

/// The median of one kind of action, as the report has it; nothing where the run had none.
Seconds median_of(const RunReport& report, StageId stage, const char* kind) {
  for (const ActionRow& row : report.actions) {
    if (row.stage == stage && row.kind == kind) return row.p50;
  }
  return Seconds{};
}

std::vector<MeasuredStage> measured_stages(const RunReport& report) {
  std::vector<MeasuredStage> measured;
  for (int s = 0; s < report.stages; ++s) {
    const StageId stage{s};
    measured.push_back({.forward = median_of(report, stage, "forward"),
                        .backward = median_of(report, stage, "backward") +
                                    median_of(report, stage, "backward input") +
                                    median_of(report, stage, "backward weight"),
                        .step = median_of(report, stage, "optimizer")});
  }
  return measured;
}

/// How far the present plan's simulation is from the run, with the very stage times of the run.
Seconds off_by(const Replanned& answer, const RunReport& report) {
  return Seconds{std::abs((answer.present.predicted->step - report.step.measured).value)};
}

std::string verdict(const Replanned& answer, const RunReport& report, Seconds cost) {
  const auto steps = answer.break_even(cost);
  if (!steps) return "stay: no plan is faster";
  if (answer.gain() < off_by(answer, report)) {
    return fmt::format("stay: saves {} per step, less than the {} by which the simulation misses this run",
                       format_duration(answer.gain()), format_duration(off_by(answer, report)));
  }
  return fmt::format("change if more than {:.0f} steps are left: saves {} per step ({})", std::ceil(*steps),
                     format_duration(answer.gain()),
                     format_percent(answer.gain() / answer.present.predicted->step));
}

std::string stage_names(const Plan& plan) {
  std::vector<int> cuts;
  for (std::size_t s = 1; s < plan.stages.size(); ++s) cuts.push_back(plan.stages[s].first_layer);
  return plan.stages.size() == 1
             ? "1 stage"
             : fmt::format("{} stages, cuts {}", plan.stages.size(), fmt::join(cuts, ","));
}

std::string measured_text(const RunReport& report, const std::vector<MeasuredStage>& measured,
                          const std::vector<Replanned>& answers, const Plan& running) {
  Table table({"stage", "rank", "layers", "F ms", "B ms", "step ms", "over profile"});
  const Replanned& layers = *std::find_if(answers.begin(), answers.end(),
                                          [](const Replanned& a) { return a.blame == Attribution::layers; });
  for (std::size_t s = 0; s < measured.size(); ++s) {
    const StagePlan& stage = running.stages[s];
    table.row({fmt::format("{}", s), fmt::format("{}", stage.ranks.front().value),
               fmt::format("{}-{}", stage.first_layer, stage.last_layer - 1), format_ms(measured[s].forward),
               format_ms(measured[s].backward), format_ms(measured[s].step),
               signed_percent(layers.factors[s] - 1)});
  }
  return fmt::format("Measured, a micro-batch, beside the profile (step: {} measured, {} planned):\n",
                     format_duration(report.step.measured),
                     report.step.predicted ? format_duration(*report.step.predicted) : "nothing") +
         table.text();
}

Json answer_json(const Replanned& answer, const RunReport& report, const ReplanOptions& options) {
  const auto steps = answer.break_even(options.switch_cost);
  return {{"blame", enum_name(answer.blame)},
          {"factors", answer.factors},
          {"present_step_ms", answer.present.predicted->step.value * 1e3},
          {"simulation_off_by_ms", off_by(answer, report).value * 1e3},
          {"best_step_ms", answer.result.best.plan.predicted->step.value * 1e3},
          {"gain_ms", answer.gain().value * 1e3},
          {"break_even_steps", steps ? Json(std::ceil(*steps)) : Json()},
          {"plan", json::write(answer.result.best.plan)}};
}

std::string answers_text(const std::vector<Replanned>& answers, const RunReport& report,
                         const ReplanOptions& options) {
  std::string text;
  for (const Replanned& answer : answers) {
    const bool devices = answer.blame == Attribution::devices;
    text += fmt::format("\n{}\n", devices ? "If a device is slow, its layers as profiled:"
                                          : "If the layers are slow, wherever they are:");
    text += fmt::format("  {:<10} {}, {} per step (simulated with what was measured)\n", "present",
                        stage_names(answer.present), format_duration(answer.present.predicted->step));
    const Plan& best = answer.result.best.plan;
    text += fmt::format("  {:<10} {}, {} per step\n", "planned", stage_names(best),
                        format_duration(best.predicted->step));
    text += fmt::format("  {:<10} {}\n", "answer", verdict(answer, report, options.switch_cost));
  }
  return text + fmt::format("\nA change is taken to cost {} (--switch-seconds).\n",
                            format_duration(options.switch_cost));
}

void run(const ReplanOptions& options) {
  const RunFiles files = read_run(options.run_dir);
  const RunReport report = make_report(files);
  if (report.timeline_steps == 0) {
    throw InputError({options.run_dir + "/timeline.json", ""},
                     "has no steps to measure stages by: expected a run with log.timeline_steps above 0");
  }
  const std::vector<MeasuredStage> measured = measured_stages(report);
  const std::vector<Replanned> answers = stagecraft::replan(
      files.plan, measured, read_profile(options.profile), read_cluster(options.cluster), options.search);
  const Replanned& chosen = *std::find_if(answers.begin(), answers.end(),
                                          [&](const Replanned& a) { return a.blame == options.attribution; });
  if (!options.output.empty()) {
    write_json_file(options.output, json::write(chosen.result.best.plan));
  }
  if (options.json) {
    Json json{{"run", options.run_dir},
              {"measured_step_ms", report.step.measured.value * 1e3},
              {"switch_ms", options.switch_cost.value * 1e3}};
    for (const Replanned& answer : answers) json["answers"].push_back(answer_json(answer, report, options));
    return print_json(json);
  }
  print(measured_text(report, measured, answers, files.plan));
  print(answers_text(answers, report, options));
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
      ->check(CLI::Range(0.0, 1e9))
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
      ->check(CLI::Range(0.0, 1e6))
      ->group("The answer");
  verb->add_option("-o,--output", options->output, "where the new plan goes (default: nowhere)")
      ->type_name("FILE")
      ->group("Output");
  verb->add_flag("--json", options->json, "one JSON document instead of text")->group("Output");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
