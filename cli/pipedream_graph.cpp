#include "cli/pipedream_graph.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace stagecraft::cli {

std::vector<int> PreparedGraph::nodes_of(const pipedream::Stage& stage, const std::vector<int>& rank) const {
  std::vector<int> nodes;
  for (const int node : stage.nodes) {
    const int place = states.original[static_cast<std::size_t>(node)];
    if (is_compressed()) {
      const std::vector<int>& members = compressed.members[static_cast<std::size_t>(place)];
      nodes.insert(nodes.end(), members.begin(), members.end());
    } else {
      nodes.push_back(place);
    }
  }
  std::ranges::sort(nodes, {}, [&](int node) { return rank[static_cast<std::size_t>(node)]; });
  return nodes;
}

PreparedGraph prepare(LayerGraph graph) {
  PreparedGraph prepared;
  prepared.graph = std::move(graph);
  try {
    prepared.states = pipedream::make_states(prepared.graph);
  } catch (const RefusedError&) {
    prepared.compressed = compress_branches(prepared.graph);
    prepared.states = pipedream::make_states(prepared.compressed.graph);
  }
  return prepared;
}

}  // namespace stagecraft::cli
