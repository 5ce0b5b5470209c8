#include "partitioner/pipedream/states.h"

#include "base/error.h"
#include "partitioner/graph/dropped.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace stagecraft::pipedream {
namespace {

class Walk {
 public:
  explicit Walk(const LayerGraph& graph)
      : graph_(graph), successors_(graph.successors()), below_(graph.nodes.size()) {
    const std::vector<std::vector<int>> predecessors = graph.predecessors();
    for (const int node : topological_order(graph)) {
      NodeSet& below = below_[to_size(node)];
      below = NodeSet(graph.nodes.size());
      for (const int before : predecessors[to_size(node)]) {
        below |= below_[to_size(before)];
        below.insert(before);
      }
    }
    for (std::size_t n = 0; n < predecessors.size() && first_ < 0; ++n) {
      if (predecessors[n].empty()) first_ = static_cast<int>(n);
    }
  }

  [[nodiscard]] std::vector<State> states() const {
    std::vector<NodeSet> found{with(NodeSet(graph_.nodes.size()), first_)};
    std::unordered_set<NodeSet> seen(found.begin(), found.end());
    for (std::size_t at = 0; at < found.size(); ++at) {
      const NodeSet here = found[at];  // a copy: `found` grows
      for (const int node : here.nodes()) {
        for (const int next : successors_[to_size(node)]) {
          if (here.contains(next)) continue;
          NodeSet further = with(here, next);
          if (!seen.insert(further).second) continue;
          if (found.size() == kMostStates) {
            throw RefusedError(
                fmt::format("the graph can be cut in more than {} places, which PipeDream's optimizer would "
                            "compare with each other one by one",
                            kMostStates));
          }
          found.push_back(std::move(further));
        }
      }
    }
    // Smaller ones first: then a state stands behind all that it contains.
    std::ranges::stable_sort(found, {}, &NodeSet::count);
    std::vector<State> states;
    states.reserve(found.size());
    for (NodeSet& before : found) states.push_back(state(std::move(before)));
    return states;
  }

 private:
  [[nodiscard]] NodeSet with(NodeSet set, int node) const {
    set |= below_[to_size(node)];
    set.insert(node);
    return set;
  }

  [[nodiscard]] State state(NodeSet before) const {
    State state;
    const std::vector<int> nodes = before.nodes();
    NodeSet inner(graph_.nodes.size());  // has something behind it in the state
    for (const int node : nodes) {
      const LayerNode& costs = graph_.nodes[to_size(node)];
      state.compute += costs.compute().value;
      state.activations += static_cast<double>(costs.activation.value);
      state.parameters += static_cast<double>(costs.parameters.value);
      inner |= below_[to_size(node)];
    }
    NodeSet sending(graph_.nodes.size());
    for (const int last : nodes) {
      if (inner.contains(last)) continue;
      sending.insert(last);
      const NodeSet& below = below_[to_size(last)];
      for (const int node : below.nodes()) {
        for (const int reader : successors_[to_size(node)]) {
          if (reader != last && !below.contains(reader)) sending.insert(node);
        }
      }
    }
    for (const int node : sending.nodes()) {
      state.output += static_cast<double>(graph_.nodes[to_size(node)].activation.value);
    }
    state.before = std::move(before);
    return state;
  }

  const LayerGraph& graph_;
  std::vector<std::vector<int>> successors_;
  std::vector<NodeSet> below_;  // all that a node needs
  int first_ = -1;
};

}  // namespace

StateGraph make_states(const LayerGraph& graph) {
  Planned planned = without_dropped(graph);
  StateGraph result;
  result.graph = std::move(planned.graph);
  result.original = std::move(planned.original);
  result.states = Walk(result.graph).states();
  result.contained.resize(result.states.size());
  for (std::size_t j = 0; j < result.states.size(); ++j) {
    for (std::size_t k = 0; k < j; ++k) {
      if (result.states[j].before.includes(result.states[k].before)) {
        result.contained[j].push_back(static_cast<int>(k));
      }
    }
  }
  return result;
}

}  // namespace stagecraft::pipedream
