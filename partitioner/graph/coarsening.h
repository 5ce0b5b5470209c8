#pragma once

// Blocks for graphs that have too many downsets to go over, or too many nodes for a row.
//
// First the chains behind forks are one block each (branches.h). Where that is not enough, the row of what is
// left is cut into runs of neighbours, fewer and fewer until the downsets are few enough. Runs of a row along
// the edges read from earlier runs alone, so blocks never read in a circle. What is lost are cuts through
// blocks; nothing is said here about what those would have been worth.

#include "stagecraft/partitioner/graph/downsets.h"

namespace stagecraft {

/// More are neither counted as downsets nor planned as a row, which takes the square of their number.
inline constexpr std::size_t kMostBlocks = 600;

/// The downsets of blocks that stand along the edges, about as fine as the limits allow. Requires a node at
/// least. Bounded work, whatever the graph.
[[nodiscard]] Downsets coarsen(const LayerGraph& graph, const DownsetLimits& limits = {});

}  // namespace stagecraft
