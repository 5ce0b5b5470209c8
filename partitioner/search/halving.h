#pragma once

// Searches that were begun and can go on for as long as they are let: what is left of the budget goes to those that
// came nearest, to fewer and fewer of them (successive halving: Jamieson & Talwalkar, "Non-stochastic best arm
// identification and hyperparameter optimization", AISTATS 2016).

#include "partitioner/search/planning_run.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace stagecraft::planning {

/// `key` of a search: the least is the nearest. `go_on` takes a search and its share, and takes what it needs off the
/// budget.
template <class Search, class Key, class GoOn>
void halve(PlanningRun& run, std::vector<Search> searches, const Key& key, const GoOn& go_on) {
  constexpr std::size_t kMost = 6;
  for (std::size_t most = kMost; !searches.empty() && !run.budget.over(); most /= 2) {
    std::ranges::stable_sort(searches, {}, key);
    searches.resize(std::min(searches.size(), most));
    const bool last = searches.size() == 1;
    for (Search& search : searches) {
      if (!run.budget.over()) go_on(search, run.share(last ? 1 : 2 * searches.size()));
    }
    if (last) return;
  }
}

}  // namespace stagecraft::planning
