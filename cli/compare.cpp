#include "stagecraft/cli/compare.h"

#include "stagecraft/base/error.h"
#include "stagecraft/base/json.h"
#include "stagecraft/base/table.h"
#include "stagecraft/cli/drawing.h"
#include "stagecraft/schedules/costs/traffic.h"
#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/lowering/lowering.h"
#include "stagecraft/schedules/simulator/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace stagecraft::cli {
namespace {

/// Steps in a picture where nobody says how many and some schedule has no flush between them.
constexpr int kDrawnSteps = 3;

std::vector<const Schedule*> schedules_named(const std::string& names) {
  std::vector<const Schedule*> chosen;
  const auto add = [&](const Schedule& schedule) {
    if (std::find(chosen.begin(), chosen.end(), &schedule) == chosen.end()) chosen.push_back(&schedule);
  };
  if (names == "all") {
    for (const Schedule& schedule : schedules()) add(schedule);
    return chosen;
  }
  for (std::size_t at = 0; at <= names.size();) {
    const std::size_t comma = std::min(names.find(',', at), names.size());
    add(find_schedule(names.substr(at, comma - at), {"--compare", ""}));
    at = comma + 1;
  }
  return chosen;
}

/// The plan with another schedule. Options of the plan's own schedule mean nothing to others, but whether a
/// step agrees on the norm is the training's question.
Plan under(const Plan& plan, const Schedule& schedule, const CostTable& costs) {
  Plan other = plan;
  if (plan.schedule.name != schedule.name) {
    other.schedule = ScheduleChoice{.name = schedule.name};
    other.schedule.agree_norm = plan.schedule.agree_norm && schedule.clips;
    other.program.reset();  // the order it carries is its own schedule's
  }
  other.costs = costs;
  return other;
}

void judge(const Proof& proof, std::optional<Bytes> capacity, Compared& compared) {
  for (const MemoryProof& memory : proof.memory) {
    if (compared.worst.valid() && memory.peak <= compared.peak) continue;
    compared.worst = memory.rank;
    compared.peak = memory.peak;
  }
  compared.fits = !capacity || compared.peak <= *capacity;
  for (const StageProof& stage : proof.stages)
    compared.versions = std::max(compared.versions, stage.versions_alive);
}

Panel drawn(const std::string& path, const Plan& plan, bool synchronous, int steps) {
  SubjectRequest request;
  if (!synchronous) request.steps = steps;
  const InputProgram subject = plan_subject(path, plan, request);
  const LoweredProgram program = lower(subject.program);
  return draw(subject, program, prove(program, subject.costs()), synchronous ? steps : 1);
}

Compared compare_one(const InputProgram& subject, const Schedule& schedule, const SubjectRequest& request,
                     int drawn_steps) {
  Compared compared;
  compared.schedule = schedule.name;
  try {
    const CostTable& costs = *subject.costs();
    const Plan plan = under(*subject.plan, schedule, costs);
    const InputProgram other = plan_subject(subject.path, plan, request);
    const LoweredProgram program = lower(other.program);
    judge(prove(program, &costs), plan.capacity, compared);
    const Traffic sent = traffic(program, costs);
    compared.messages = sent.messages / program.groups();
    compared.sent = Bytes{sent.bytes.value / program.groups()};
    if (request.steps || schedule.synchronous) {
      const Simulation simulation = simulate(program, costs);
      const int repeats = schedule.synchronous ? request.steps.value_or(1) : 1;
      compared.time = simulation.makespan * repeats;
      compared.bubble = simulation.bubble;
    } else {
      Plan unbounded = plan;  // what it would take is asked, not whether it fits
      unbounded.capacity.reset();
      const Prediction prediction = predict(unbounded);
      compared.steady = true;
      compared.time = prediction.step;
      compared.bubble = prediction.bubble;
    }
    if (drawn_steps > 0) compared.panel = drawn(subject.path, plan, schedule.synchronous, drawn_steps);
  } catch (const InputError& error) {
    compared.refused = error.what();
  } catch (const RefusedError& error) {
    compared.refused = error.what();
  }
  return compared;
}

Seconds best_of(const Comparison& comparison) {
  Seconds best{-1};
  for (const Compared& compared : comparison.schedules) {
    if (compared.refused.empty() && (best < Seconds{} || compared.time < best)) best = compared.time;
  }
  return best;
}

}  // namespace

Comparison compare(const InputProgram& subject, const std::string& names, const SubjectRequest& request,
                   bool draws) {
  const std::vector<const Schedule*> chosen = schedules_named(names);
  if (!subject.plan) {
    throw InputError({subject.path, ""},
                     "is one schedule, written out; --compare takes a plan, to put its stages under others");
  }
  const bool flushes =
      std::all_of(chosen.begin(), chosen.end(), [](const Schedule* s) { return s->synchronous; });
  const int steps = request.steps.value_or(flushes ? 1 : kDrawnSteps);
  Comparison comparison;
  comparison.steps = request.steps.value_or(0);
  for (const Schedule* schedule : chosen) {
    comparison.schedules.push_back(compare_one(subject, *schedule, request, draws ? steps : 0));
  }
  return comparison;
}

bool Comparison::any() const {
  return std::any_of(schedules.begin(), schedules.end(), [](const Compared& c) { return c.refused.empty(); });
}

std::string comparison_text(const InputProgram& subject, const Comparison& comparison) {
  const Seconds best = best_of(comparison);
  const std::string time = comparison.steps > 1 ? fmt::format("{} steps ms", comparison.steps) : "step ms";
  std::vector<std::string> columns{"<schedule", time,       "of best", "bubble",  "peak memory",
                                   "of rank",   "messages", "sent",    "versions"};
  const auto capacity = subject.capacity();
  if (capacity) columns.push_back("fits " + format_bytes(*capacity));
  Table table(std::move(columns));
  std::string reasons;
  bool steady = false;
  for (const Compared& c : comparison.schedules) {
    if (!c.refused.empty()) {
      std::vector<std::string> cells{c.schedule, "-", "-", "-", "-", "-", "-", "-", "-"};
      if (capacity) cells.emplace_back("-");
      table.row(std::move(cells));
      reasons += fmt::format("  {}: {}\n", c.schedule, c.refused);
      continue;
    }
    steady = steady || c.steady;
    std::vector<std::string> cells{c.schedule + (c.steady ? " *" : ""),
                                   format_ms(c.time),
                                   best > Seconds{} ? fmt::format("{:.3f}", c.time / best) : "-",
                                   format_percent(c.bubble),
                                   format_bytes(c.peak),
                                   std::to_string(c.worst.value),
                                   std::to_string(c.messages),
                                   format_bytes(c.sent),
                                   std::to_string(c.versions)};
    if (capacity) cells.emplace_back(c.fits ? "yes" : "no");
    table.row(std::move(cells));
  }
  std::string text = table.text();
  text += "Messages and bytes sent are a step's, reductions over replicas apart.\n";
  if (steady) text += "* no flush between steps: what one more step adds once the pipeline is full\n";
  if (!reasons.empty()) text += "\nNot for this plan:\n" + reasons;
  return text;
}

Json comparison_json(const InputProgram& subject, const Comparison& comparison) {
  const Seconds best = best_of(comparison);
  Json json{{"file", subject.path},
            {"stages", subject.plan->stages.size()},
            {"ranks", subject.program.placement.world()},
            {"micro_batches", subject.plan->micro_batches},
            {"steps", std::max(1, comparison.steps)},
            {"schedules", Json::array()}};
  if (const auto capacity = subject.capacity()) json["capacity_bytes"] = capacity->value;
  for (const Compared& c : comparison.schedules) {
    Json entry{{"schedule", c.schedule}, {"refused", c.refused.empty() ? Json() : Json(c.refused)}};
    if (c.refused.empty()) {
      entry["makespan_ms"] = c.time.value * 1e3;
      entry["steady"] = c.steady;
      entry["of_best"] = best > Seconds{} ? Json(c.time / best) : Json();
      entry["bubble"] = c.bubble;
      entry["peak_bytes"] = c.peak.value;
      entry["peak_rank"] = c.worst.value;
      entry["fits"] = c.fits;
      entry["messages"] = c.messages;
      entry["sent_bytes"] = c.sent.value;
      entry["versions"] = c.versions;
    }
    json["schedules"].push_back(std::move(entry));
  }
  return json;
}

std::vector<Panel> comparison_panels(Comparison& comparison) {
  std::vector<Panel> panels;
  for (Compared& compared : comparison.schedules) {
    if (compared.refused.empty()) panels.push_back(std::move(compared.panel));
  }
  return panels;
}

}  // namespace stagecraft::cli
