// How a plan under other schedules looks to people and to programs.

#include "base/json.h"
#include "base/table.h"
#include "cli/plan_under.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft::cli {
namespace {

Seconds best_of(const Comparison& comparison) {
  Seconds best{-1};
  for (const Compared& compared : comparison.schedules) {
    if (compared.refused.empty() && (best < Seconds{} || compared.time < best)) best = compared.time;
  }
  return best;
}

}  // namespace

std::string comparison_text(const InputProgram& input, const Comparison& comparison) {
  const Seconds best = best_of(comparison);
  const std::string time = comparison.steps > 1 ? fmt::format("{} steps ms", comparison.steps) : "step ms";
  std::vector<std::string> columns{"<schedule", time,       "of best", "bubble",  "peak memory",
                                   "of rank",   "messages", "sent",    "versions"};
  const auto capacity = input.capacity();
  if (capacity) columns.push_back("fits " + format_bytes(*capacity));
  Table table(std::move(columns));
  std::string reasons;
  bool steady = false;
  for (const Compared& c : comparison.schedules) {
    if (!c.refused.empty()) {
      std::vector<Table::Cell> cells{c.schedule, "-", "-", "-", "-", "-", "-", "-", "-"};
      if (capacity) cells.emplace_back("-");
      table.row(std::move(cells));
      reasons += fmt::format("  {}: {}\n", c.schedule, c.refused);
      continue;
    }
    steady = steady || c.steady;
    std::vector<Table::Cell> cells{c.schedule + (c.steady ? " *" : ""),
                                   c.time,
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

Json comparison_json(const InputProgram& input, const Comparison& comparison) {
  const Seconds best = best_of(comparison);
  Json json{{"file", input.path},
            {"stages", input.plan->stages.size()},
            {"ranks", input.program.placement.world()},
            {"micro_batches", input.plan->micro_batches},
            {"steps", std::max(1, comparison.steps)},
            {"schedules", Json::array()}};
  if (const auto capacity = input.capacity()) json["capacity_bytes"] = capacity->value;
  for (const Compared& c : comparison.schedules) {
    Json entry{{"schedule", c.schedule}, {"refused", c.refused.empty() ? Json() : Json(c.refused)}};
    if (c.refused.empty()) {
      entry["time_ms"] = c.time.value * 1e3;
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

}  // namespace stagecraft::cli
