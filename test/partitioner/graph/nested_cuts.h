#pragma once

// All nested downsets of small graphs, by enumeration.

#include "stagecraft/partitioner/graph/downset_partition.h"

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

namespace stagecraft::test {

[[nodiscard]] inline bool contains(const Downsets& downsets, int larger, int smaller) {
  const std::vector<int> more = downsets.nodes(larger);
  const std::set<int> set(more.begin(), more.end());
  const std::vector<int> less = downsets.nodes(smaller);
  return std::all_of(less.begin(), less.end(), [&](int node) { return set.contains(node); });
}

/// Every stage has a node.
[[nodiscard]] inline bool nested(const Downsets& downsets, const NestedCuts& cuts) {
  for (std::size_t s = 0; s <= cuts.size(); ++s) {
    const int first = s == 0 ? 0 : cuts[s - 1];
    const int last = s == cuts.size() ? downsets.all() : cuts[s];
    if (first == last || !contains(downsets, last, first)) return false;
  }
  return true;
}

/// Calls `visit` for every sequence of nested cuts with a node in every stage.
inline void every_nested_cuts(const Downsets& downsets, int stages,
                              const std::function<void(const NestedCuts&)>& visit) {
  std::vector<std::vector<int>> larger(static_cast<std::size_t>(downsets.size()));
  for (int a = 0; a < downsets.size(); ++a) {
    for (int b = a + 1; b < downsets.size(); ++b) {
      if (contains(downsets, b, a)) larger[static_cast<std::size_t>(a)].push_back(b);
    }
  }
  NestedCuts cuts;
  const std::function<void()> extend = [&] {
    if (static_cast<int>(cuts.size()) == stages - 1) return visit(cuts);
    for (const int next : larger[static_cast<std::size_t>(cuts.empty() ? 0 : cuts.back())]) {
      if (next == downsets.all()) continue;
      cuts.push_back(next);
      extend();
      cuts.pop_back();
    }
  };
  extend();
}

}  // namespace stagecraft::test
