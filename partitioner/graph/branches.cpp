#include "partitioner/graph/branches.h"

#include <fmt/format.h>

namespace stagecraft {

CompressedGraph compress_branches(const LayerGraph& graph) {
  const std::vector<std::vector<int>> successors = graph.successors();
  const std::vector<std::vector<int>> predecessors = graph.predecessors();
  const auto next = [&](int node) -> const std::vector<int>& { return successors[to_size(node)]; };
  const auto before = [&](int node) -> const std::vector<int>& { return predecessors[to_size(node)]; };
  const auto begins_branch = [&](int node) {
    return before(node).size() == 1 && next(before(node).front()).size() > 1;
  };
  std::vector<std::vector<int>> behind(graph.nodes.size());  // of a branch's first node: the rest of it
  std::vector<bool> merged(graph.nodes.size());
  for (int node = 0; node < static_cast<int>(graph.nodes.size()); ++node) {
    if (!begins_branch(node)) continue;
    for (int at = node; next(at).size() == 1 && before(next(at).front()).size() == 1;) {
      at = next(at).front();
      behind[to_size(node)].push_back(at);
      merged[to_size(at)] = true;
    }
  }
  CompressedGraph result;
  std::vector<int> place(graph.nodes.size());
  for (std::size_t node = 0; node < graph.nodes.size(); ++node) {
    if (merged[node]) continue;
    LayerNode whole = graph.nodes[node];
    place[node] = static_cast<int>(result.graph.nodes.size());
    for (const int at : behind[node]) {
      const LayerNode& more = graph.nodes[to_size(at)];
      whole.forward += more.forward;
      whole.backward += more.backward;
      whole.parameters += more.parameters;
      whole.activation = more.activation;
      place[to_size(at)] = place[node];
    }
    if (!behind[node].empty()) whole.id = fmt::format("{}+{}", whole.id, behind[node].size());
    result.graph.nodes.push_back(std::move(whole));
    std::vector<int>& members = result.members.emplace_back(std::move(behind[node]));
    members.insert(members.begin(), static_cast<int>(node));
  }
  for (const LayerEdge& edge : graph.edges) {
    const int from = place[to_size(edge.from)];
    const int to = place[to_size(edge.to)];
    if (from != to) result.graph.edges.push_back({from, to});
  }
  return result;
}

}  // namespace stagecraft
