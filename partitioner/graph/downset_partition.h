#pragma once

// The best nested downsets of a graph, for stages that are sums over their nodes.
//
// The number of stages is fixed. A stage's time is a sum over what it holds, over what lies before it (a
// pipeline fills over that) and over the bytes of the cut it begins behind. Both programs here go over all
// steps of the downsets once and carry, a downset and stage, the least that this stage can have come to:
// where it began does not matter any more but for that number, so nothing is lost. O(steps x stages).

#include "stagecraft/partitioner/graph/downsets.h"

#include <functional>
#include <limits>
#include <optional>
#include <vector>

namespace stagecraft {

/// Seconds for a second (for a byte of parameters: seconds) of each kind.
using NodeFactors = NodeSums;

/// constant + before * (nodes before the stage) + seconds_per_byte * (bytes over its first cut) + own * (nodes)
struct StageLine {
  NodeFactors before;
  NodeFactors own;
  double seconds_per_byte = 0;
  double constant = 0;
};

/// Of stages 1, 2, ...: the downset before each, nested, every stage with a block at least.
using NestedCuts = std::vector<int>;

/// Between which sums of compute a cut may lie, both included.
struct CutWindow {
  double low = 0;
  double high = std::numeric_limits<double>::infinity();

  [[nodiscard]] bool holds(double compute) const { return low <= compute && compute <= high; }
};
/// Of stages 1, 2, ...; empty: anywhere.
using CutWindows = std::vector<CutWindow>;

[[nodiscard]] double value_of(const Downsets& downsets, const StageLine& line, int first, int last);

/// What is to be made small: the largest line of any stage and the largest boundary.
struct BottleneckProblem {
  /// Per stage, as many each. With one line the least bottleneck is exact. With several each is made small
  /// apart from the others, so that the result is a lower bound, and the cuts are those of the first line.
  std::vector<std::vector<StageLine>> lines;
  /// Seconds of the boundary into a stage that so many bytes cross; never falls with the bytes. Empty: none.
  std::function<double(int stage, double bytes)> boundary{};
  CutWindows windows{};

  [[nodiscard]] int stages() const { return static_cast<int>(lines.size()); }
};

struct BottleneckResult {
  /// Less than `below`, if there are any.
  std::optional<NestedCuts> cuts;
  double seconds = 0;  ///< theirs
  /// Nothing is below this, or below `below` where that is less.
  double bound = 0;
};

/// Bisects until bound and value are within `tolerance` of each other, a share; 0: until they meet. Requires
/// as many blocks as stages. Nothing is less than `at_least`.
[[nodiscard]] BottleneckResult least_bottleneck(const Downsets& downsets, const BottleneckProblem& problem,
                                                double at_least, double below, double tolerance);

struct CheapestResult {
  NestedCuts cuts;
  double seconds = 0;  ///< infinite where the windows leave no cuts
};

/// The cuts with the least sum of one line per stage; what is `before` a stage is not looked at.
[[nodiscard]] CheapestResult cheapest(const Downsets& downsets, const std::vector<StageLine>& lines,
                                      const CutWindows& windows = {});

}  // namespace stagecraft
