#include "cli/row_text.h"

#include "base/table.h"
#include "base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft::cli {
namespace {

/// Of the stage's nodes: a layer is called by its node's id and kind.
std::vector<std::string> ids_of(const StagePlan& stage, const Measurement& row) {
  std::vector<std::string> ids;
  for (int layer = stage.first_layer; layer < stage.last_layer; ++layer) {
    const std::string& name = row.layers[static_cast<std::size_t>(layer)].name;
    ids.push_back(name.substr(0, name.find(' ')));
  }
  return ids;
}

/// An id as its letters and the number at its end, where there is one.
std::pair<std::string, std::optional<int>> parts_of(const std::string& id) {
  const std::size_t letters = id.find_last_not_of("0123456789") + 1;
  std::string_view digits = std::string_view(id).substr(letters);
  if (digits.empty() || digits.front() == '0') return {id, std::nullopt};
  const auto number = take_number(digits);
  if (!number || !digits.empty()) return {id, std::nullopt};
  return {id.substr(0, letters), *number};
}

/// "node2-node17, node20": ids that count on are one run; a few runs, and how many there are more.
std::string ids_text(const std::vector<std::string>& ids) {
  std::map<std::string, std::vector<int>> numbers;
  std::vector<std::string> runs;
  for (const std::string& id : ids) {
    const auto [letters, number] = parts_of(id);
    if (number) {
      numbers[letters].push_back(*number);
    } else {
      runs.push_back(letters);
    }
  }
  for (auto& [letters, all] : numbers) {
    std::sort(all.begin(), all.end());
    for (std::size_t first = 0, last = 0; first < all.size(); first = last) {
      last = first + 1;
      while (last < all.size() && all[last] == all[last - 1] + 1) ++last;
      runs.push_back(last - first == 1
                         ? fmt::format("{}{}", letters, all[first])
                         : fmt::format("{}{}-{}{}", letters, all[first], letters, all[last - 1]));
    }
  }
  constexpr std::size_t kShown = 8;
  if (runs.size() <= kShown) return fmt::format("{}", fmt::join(runs, ", "));
  const std::size_t more = runs.size() - kShown;
  runs.resize(kShown);
  return fmt::format("{} and {} more runs (--json has all)", fmt::join(runs, ", "), more);
}

}  // namespace

std::string row_text(const Plan& plan, const Measurement& row) {
  Table table({"stage", "nodes", "<which"});
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<std::string> ids = ids_of(plan.stages[s], row);
    table.row({fmt::format("{}", s), fmt::format("{}", ids.size()), ids_text(ids)});
  }
  return "\n" + table.text() +
         "\n  graph     cut along one row of its nodes; what is proved is so of the cuts of that row\n";
}

Json row_json(const Plan& plan, const Measurement& row) {
  Json stages = Json::array();
  for (const StagePlan& stage : plan.stages) stages.push_back(ids_of(stage, row));
  return stages;
}

}  // namespace stagecraft::cli
