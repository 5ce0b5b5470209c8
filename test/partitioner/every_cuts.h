#pragma once

#include <functional>
#include <vector>

namespace stagecraft::test {

/// Calls `visit` for all ways to cut `layers` layers into `stages` stages.
inline void every_cuts(int layers, int stages, const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> cuts;
  const std::function<void()> extend = [&] {
    if (static_cast<int>(cuts.size()) == stages - 1) return visit(cuts);
    for (int cut = cuts.empty() ? 1 : cuts.back() + 1; cut < layers; ++cut) {
      cuts.push_back(cut);
      extend();
      cuts.pop_back();
    }
  };
  extend();
}

}  // namespace stagecraft::test
