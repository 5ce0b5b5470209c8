#include "cli/replan_text.h"

#include "base/json.h"
#include "base/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace stagecraft::cli {
namespace {

/// How far the present plan's simulation is from the run, with the very stage times of the run.
Seconds off_by(const Replanned& answer, const RunReport& report) {
  return Seconds{std::abs((answer.present.predicted->step - report.step.measured.value()).value)};
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

}  // namespace

std::string measured_text(const RunReport& report, const std::vector<MeasuredStage>& measured,
                          const std::vector<Replanned>& answers, const Plan& running) {
  Table table({"stage", "rank", "layers", "F ms", "B ms", "step ms", "over profile"});
  const Replanned& layers = *std::find_if(answers.begin(), answers.end(),
                                          [](const Replanned& a) { return a.blame == Attribution::layers; });
  const auto time = [](Seconds median) {
    return median > Seconds{} ? Table::Cell(median) : Table::Cell("-");
  };
  for (std::size_t s = 0; s < measured.size(); ++s) {
    const StagePlan& stage = running.stages[s];
    const bool known = measured[s].forward > Seconds{} || measured[s].backward > Seconds{};
    table.row({fmt::format("{}", s), fmt::format("{}", stage.ranks.front().value),
               fmt::format("{}-{}", stage.first_layer, stage.last_layer - 1), time(measured[s].forward),
               time(measured[s].backward), time(measured[s].step),
               known ? signed_percent(layers.factors[s] - 1) : "-"});
  }
  return fmt::format("Measured, a micro-batch, beside the profile (step: {} measured, {} planned):\n",
                     format_duration(report.step.measured.value()),
                     report.step.predicted ? format_duration(*report.step.predicted) : "nothing") +
         table.text();
}

Json answer_json(const Replanned& answer, const RunReport& report, Seconds switch_cost) {
  const auto steps = answer.break_even(switch_cost);
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
                         Seconds switch_cost) {
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
    text += fmt::format("  {:<10} {}\n", "answer", verdict(answer, report, switch_cost));
  }
  return text +
         fmt::format("\nA change is taken to cost {} (--switch-seconds).\n", format_duration(switch_cost));
}

}  // namespace stagecraft::cli
