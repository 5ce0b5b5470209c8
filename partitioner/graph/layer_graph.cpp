#include "partitioner/graph/layer_graph.h"

#include <functional>
#include <queue>

namespace stagecraft {

std::vector<std::vector<int>> LayerGraph::successors() const {
  std::vector<std::vector<int>> all(nodes.size());
  for (const LayerEdge& edge : edges) all[to_size(edge.from)].push_back(edge.to);
  return all;
}

std::vector<std::vector<int>> LayerGraph::predecessors() const {
  std::vector<std::vector<int>> all(nodes.size());
  for (const LayerEdge& edge : edges) all[to_size(edge.to)].push_back(edge.from);
  return all;
}

std::vector<int> topological_order(const LayerGraph& graph) {
  const std::vector<std::vector<int>> successors = graph.successors();
  std::vector<int> waits_for(graph.nodes.size(), 0);
  for (const LayerEdge& edge : graph.edges) ++waits_for[to_size(edge.to)];
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (std::size_t n = 0; n < waits_for.size(); ++n) {
    if (waits_for[n] == 0) ready.push(static_cast<int>(n));
  }
  std::vector<int> order;
  order.reserve(graph.nodes.size());
  while (!ready.empty()) {
    const int node = ready.top();
    ready.pop();
    order.push_back(node);
    for (const int next : successors[to_size(node)]) {
      if (--waits_for[to_size(next)] == 0) ready.push(next);
    }
  }
  return order;
}

}  // namespace stagecraft
