#pragma once

// Coarser graphs, for those with so many branches that their states explode (Inception, NASNet): a chain that
// begins right behind a fork becomes one node, as PipeDream's compress_graph_branches does.
//
// What is lost: no cut within such a chain is considered any more. A plan of the coarser graph is a plan of
// the finer one.

#include "partitioner/graph/layer_graph.h"

namespace stagecraft {

struct CompressedGraph {
  LayerGraph graph;                       ///< nodes in the order of their first ones
  std::vector<std::vector<int>> members;  ///< of every node: the nodes it is made from, first to last
};

/// A merged node has the first one's id with the number of those that follow ("node12+2"), the sum of times
/// and parameters, and the last one's activation.
[[nodiscard]] CompressedGraph compress_branches(const LayerGraph& graph);

}  // namespace stagecraft
