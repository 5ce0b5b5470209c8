#pragma once

// Searches that were begun and can go on for as long as they are let: what is left of the budget goes to those that
// came nearest, to fewer and fewer of them (successive halving: Jamieson & Talwalkar, "Non-stochastic best arm
// identification and hyperparameter optimization", AISTATS 2016). One that still comes nearer is before one that does
// not.

#include "partitioner/search/planning_run.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace stagecraft::planning {

/// `key` of a search: the least is the nearest. `go_on` takes a search and its share, and takes what it needs off the
/// budget.
template <class Search, class Key, class GoOn>
void halve(PlanningRun& run, std::vector<Search> searches, const Key& key, const GoOn& go_on) {
  constexpr std::size_t kMost = 4;
  struct Arm {
    Search search;
    bool nearer = true;
  };
  std::vector<Arm> arms;
  for (Search& search : searches) arms.push_back({std::move(search)});
  bool any = true;  // came nearer the last time; if none did, the best is tried once more
  for (std::size_t most = kMost; !arms.empty() && !run.budget.over(); most = any ? most / 2 : 1) {
    std::ranges::stable_sort(arms, {},
                             [&](const Arm& arm) { return std::pair(!arm.nearer, key(arm.search)); });
    if (arms.size() > most) arms.erase(arms.begin() + static_cast<std::ptrdiff_t>(most), arms.end());
    const bool last = arms.size() == 1;
    any = false;
    for (Arm& arm : arms) {
      if (run.budget.over()) break;
      const auto before = key(arm.search);
      CutSearchBudget share = run.share(last ? 1 : 2 * arms.size());
      share.goes_on = !last;
      go_on(arm.search, share);
      arm.nearer = key(arm.search) < before;
      any = any || arm.nearer;
    }
    if (last) return;
  }
}

}  // namespace stagecraft::planning
