#include "partitioner/search/nearby_cuts.h"

#include "base/error.h"
#include "partitioner/plan/plan_pricer.h"
#include "partitioner/search/program_pricer.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft::planning {
namespace {

/// Cuts `low` to `high` shifted by `by`; none where stages would be empty.
std::optional<std::vector<int>> shifted(std::vector<int> cuts, std::size_t low, std::size_t high, int by,
                                        int cuttable) {
  for (std::size_t c = low; c <= high; ++c) cuts[c] += by;
  if (cuts.front() < 1 || cuts.back() >= cuttable) return std::nullopt;
  if (std::ranges::adjacent_find(cuts, std::greater_equal{}) != cuts.end()) return std::nullopt;
  return cuts;
}

}  // namespace

PlanCandidate with_nearby_cuts(const PlanningRun& run, const Layout& layout, PlanCandidate candidate,
                               PlanPricer& pricer, std::int64_t& left) {
  const auto try_cuts = [&](const std::vector<int>& cuts) {
    left -= static_cast<std::int64_t>(PlanMaker::price_of_cuts(pricer));
    try {
      auto better = run.maker.better_with(cuts, layout, candidate, pricer);
      if (!better) return false;
      left -= kProved * static_cast<std::int64_t>(pricer.actions());
      candidate = std::move(*better);
      return true;
    } catch (const InputError&) {  // not such stages, says the schedule
      return false;
    }
  };
  for (bool again = true; again;) {
    again = false;
    const std::size_t count = candidate.plan.cuts().size();
    for (std::size_t low = 0; low < count; ++low) {
      for (std::size_t high = low; high < count; ++high) {
        for (const int by : {2, -2, 1, -1}) {
          if (left <= 0 || run.budget.over()) return candidate;
          const auto cuts = shifted(candidate.plan.cuts(), low, high, by, run.maker.cuttable());
          if (cuts && try_cuts(*cuts)) again = true;
        }
      }
    }
  }
  return candidate;
}

}  // namespace stagecraft::planning
