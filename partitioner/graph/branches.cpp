#include "stagecraft/partitioner/graph/branches.h"

#include <fmt/format.h>

namespace stagecraft {

CompressedGraph compress_branches(const LayerGraph& graph) {
  const std::vector<std::vector<int>> successors = graph.successors();
  const std::vector<std::vector<int>> predecessors = graph.predecessors();
  const auto next = [&](int node) -> const std::vector<int>& {
    return successors[static_cast<std::size_t>(node)];
  };
  const auto before = [&](int node) -> const std::vector<int>& {
    return predecessors[static_cast<std::size_t>(node)];
  };
  const auto begins_branch = [&](int node) {
    return before(node).size() == 1 && next(before(node).front()).size() > 1;
  };
  constexpr int kOwn = -1;
  std::vector<int> head(graph.nodes.size(), kOwn);  // of the chain that a node is in
  for (int node = 0; node < static_cast<int>(graph.nodes.size()); ++node) {
    if (!begins_branch(node)) continue;
    int at = node;
    while (next(at).size() == 1 && before(next(at).front()).size() == 1) {
      at = next(at).front();
      head[static_cast<std::size_t>(at)] = node;
    }
  }
  CompressedGraph result;
  std::vector<int> place(graph.nodes.size());
  for (int node = 0; node < static_cast<int>(graph.nodes.size()); ++node) {
    if (head[static_cast<std::size_t>(node)] != kOwn) continue;
    place[static_cast<std::size_t>(node)] = static_cast<int>(result.graph.nodes.size());
    LayerNode merged = graph.nodes[static_cast<std::size_t>(node)];
    std::vector<int> members{node};
    for (int at = node; next(at).size() == 1 && head[static_cast<std::size_t>(next(at).front())] == node;) {
      at = next(at).front();
      const LayerNode& more = graph.nodes[static_cast<std::size_t>(at)];
      merged.forward += more.forward;
      merged.backward += more.backward;
      merged.parameters += more.parameters;
      merged.activation = more.activation;
      members.push_back(at);
      place[static_cast<std::size_t>(at)] = place[static_cast<std::size_t>(node)];
    }
    if (members.size() > 1) merged.id = fmt::format("{}+{}", merged.id, members.size() - 1);
    result.graph.nodes.push_back(std::move(merged));
    result.members.push_back(std::move(members));
  }
  for (const LayerEdge& edge : graph.edges) {
    const int from = place[static_cast<std::size_t>(edge.from)];
    const int to = place[static_cast<std::size_t>(edge.to)];
    if (from != to) result.graph.edges.push_back({from, to});
  }
  return result;
}

}  // namespace stagecraft
