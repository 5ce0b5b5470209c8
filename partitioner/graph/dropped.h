#pragma once

// What PipeDream's optimizer leaves out of a profile before it plans, and what the row of a graph (chain.h) leaves
// out too: sources called "Input..." (they load data), and of what is left sinks called "__getitem__..."
// (outputs that nobody uses).

#include "partitioner/graph/layer_graph.h"

#include <vector>

namespace stagecraft {

struct Planned {
  LayerGraph graph;
  std::vector<int> original;  ///< of every node of `graph`: its place in the graph given
  Bytes loaded;               ///< what the inputs put out
};

/// Throws InputError when nothing is left to plan.
[[nodiscard]] Planned without_dropped(const LayerGraph& graph);

}  // namespace stagecraft
