#pragma once

// A model as a graph of operators with what each costs, as PipeDream's profiler writes it (SOSP'19, 3.1). The
// chain of layers in profile.json is the special case that this project trains; graphs are planned only.

#include "base/ids.h"

#include <string>
#include <vector>

namespace stagecraft {

/// One operator. Times are of one mini-batch on one device, bytes those of its tensors.
struct LayerNode {
  std::string id;           ///< unique in the graph: "node12"
  std::string description;  ///< "Conv2d(64, 192, kernel_size=(5, 5))"
  Seconds forward;
  Seconds backward;
  Bytes activation;  ///< what it puts out, all outputs together
  Bytes parameters;

  [[nodiscard]] Seconds compute() const { return forward + backward; }
  /// Its weight half: half of the backward where there are parameters.
  [[nodiscard]] Seconds backward_weight() const { return parameters > Bytes{} ? backward / 2 : Seconds{}; }
  /// The description up to its arguments: "Conv2d".
  [[nodiscard]] std::string kind() const { return description.substr(0, description.find('(')); }
};

/// What node `from` puts out is read by node `to`. Positions in LayerGraph::nodes.
struct LayerEdge {
  int from = 0;
  int to = 0;
};

/// Ids are unique, no edge stands twice, there is no cycle: graph_from_text lets nothing else through.
struct LayerGraph {
  std::vector<LayerNode> nodes;
  std::vector<LayerEdge> edges;

  /// Readers and producers of every node, in the order of the edges.
  [[nodiscard]] std::vector<std::vector<int>> successors() const;
  [[nodiscard]] std::vector<std::vector<int>> predecessors() const;
};

/// Nodes so that every edge points onwards; among those ready, the first in the graph comes first. Nodes on a
/// cycle, and those behind one, are left out.
[[nodiscard]] std::vector<int> topological_order(const LayerGraph& graph);

}  // namespace stagecraft
