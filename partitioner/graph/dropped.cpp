#include "partitioner/graph/dropped.h"

#include "base/error.h"

#include <string_view>

namespace stagecraft {
namespace {

/// Nodes of the graph without those that have an empty list in `lists` and a description that begins so.
std::vector<int> without_ends(const LayerGraph& graph, const std::vector<std::vector<int>>& lists,
                              std::string_view description) {
  std::vector<int> kept;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!lists[n].empty() || !graph.nodes[n].description.starts_with(description)) {
      kept.push_back(static_cast<int>(n));
    }
  }
  return kept;
}

/// The graph of those nodes and of the edges between them; `kept` is ascending.
LayerGraph subgraph(const LayerGraph& graph, const std::vector<int>& kept) {
  LayerGraph result;
  std::vector<int> place(graph.nodes.size(), -1);
  for (const int node : kept) {
    place[to_size(node)] = static_cast<int>(result.nodes.size());
    result.nodes.push_back(graph.nodes[to_size(node)]);
  }
  for (const LayerEdge& edge : graph.edges) {
    const int from = place[to_size(edge.from)];
    const int to = place[to_size(edge.to)];
    if (from >= 0 && to >= 0) result.edges.push_back({from, to});
  }
  return result;
}

Bytes activations(const LayerGraph& graph) {
  Bytes sum;
  for (const LayerNode& node : graph.nodes) sum += node.activation;
  return sum;
}

}  // namespace

Planned without_dropped(const LayerGraph& graph) {
  const std::vector<int> loaded = without_ends(graph, graph.predecessors(), "Input");
  const LayerGraph without_inputs = subgraph(graph, loaded);
  const std::vector<int> used = without_ends(without_inputs, without_inputs.successors(), "__getitem__");
  Planned planned;
  planned.graph = subgraph(without_inputs, used);
  if (used.empty()) {
    throw InputError("nothing is left to plan: the graph has no nodes but inputs and unused outputs");
  }
  for (const int node : used) planned.original.push_back(loaded[to_size(node)]);
  planned.loaded = activations(graph) - activations(without_inputs);
  return planned;
}

}  // namespace stagecraft
