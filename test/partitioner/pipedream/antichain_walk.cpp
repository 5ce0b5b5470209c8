#include "test/partitioner/pipedream/antichain_walk.h"

#include <deque>
#include <functional>

namespace stagecraft::test {
namespace {

using Nodes = std::set<int>;

class AntichainWalk {
 public:
  explicit AntichainWalk(const LayerGraph& graph)
      : graph_(graph), next_(graph.successors()), previous_(graph.predecessors()) {}

  std::map<Nodes, double> walk() {
    int source = 0;
    while (!previous_[static_cast<std::size_t>(source)].empty()) ++source;
    std::map<Nodes, double> states;
    std::set<Nodes> seen{{source}};
    std::deque<Nodes> queue{{source}};
    while (!queue.empty()) {
      const Nodes antichain = queue.front();
      queue.pop_front();
      const Nodes augmented = augment(antichain);
      double output = 0;
      for (const int node : augmented) {
        output += static_cast<double>(graph_.nodes[static_cast<std::size_t>(node)].activation.value);
      }
      Nodes before = antichain;
      for (const int node : antichain) before.merge(reached(node, previous_));
      states[before] = output;
      for (const int node : augmented) {
        for (const int next : next_[static_cast<std::size_t>(node)]) {
          if (antichain.contains(next) || leads_to_any(next, augmented)) continue;
          Nodes further = augmented;
          further.erase(node);
          further.insert(next);
          further = without_followed(further);
          if (seen.insert(further).second) queue.push_back(further);
        }
      }
    }
    return states;
  }

 private:
  [[nodiscard]] static Nodes reached(int from, const std::vector<std::vector<int>>& lists) {
    Nodes all;
    const std::function<void(int)> visit = [&](int node) {
      for (const int next : lists[static_cast<std::size_t>(node)]) {
        if (all.insert(next).second) visit(next);
      }
    };
    visit(from);
    return all;
  }

  /// With the predecessors of each member that something else follows.
  [[nodiscard]] Nodes augment(const Nodes& antichain) const {
    Nodes augmented = antichain;
    for (const int member : antichain) {
      const Nodes predecessors = reached(member, previous_);
      for (const int predecessor : predecessors) {
        for (const int out : next_[static_cast<std::size_t>(predecessor)]) {
          if (!predecessors.contains(out) && out != member) augmented.insert(predecessor);
        }
      }
    }
    return augmented;
  }

  [[nodiscard]] bool leads_to_any(int node, const Nodes& nodes) const {
    for (const int later : reached(node, next_)) {
      if (nodes.contains(later)) return true;
    }
    return false;
  }

  [[nodiscard]] Nodes without_followed(const Nodes& nodes) const {
    Nodes kept;
    for (const int node : nodes) {
      if (!leads_to_any(node, nodes)) kept.insert(node);
    }
    return kept;
  }

  const LayerGraph& graph_;
  std::vector<std::vector<int>> next_, previous_;
};

}  // namespace

std::map<std::set<int>, double> walk_antichains(const LayerGraph& graph) {
  return AntichainWalk(graph).walk();
}

}  // namespace stagecraft::test
