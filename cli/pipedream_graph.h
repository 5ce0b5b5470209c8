#pragma once

// The graph that `optimize-pipedream` plans: its branches compressed where there are too many places to cut.

#include "partitioner/graph/branches.h"
#include "partitioner/graph/layer_graph.h"
#include "partitioner/pipedream/optimizer.h"

#include <vector>

namespace stagecraft::cli {

struct PreparedGraph {
  LayerGraph graph;            ///< as it was given
  CompressedGraph compressed;  ///< empty when it was not
  pipedream::StateGraph states;

  [[nodiscard]] bool is_compressed() const { return !compressed.members.empty(); }
  /// A stage's nodes in the graph given, in the order in which they are computed: that of `rank`, by node.
  [[nodiscard]] std::vector<int> nodes_of(const pipedream::Stage& stage, const std::vector<int>& rank) const;
};

/// Throws RefusedError for a graph that has too many places to cut even when compressed.
[[nodiscard]] PreparedGraph prepare(LayerGraph graph);

}  // namespace stagecraft::cli
