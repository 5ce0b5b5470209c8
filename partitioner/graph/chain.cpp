#include "stagecraft/partitioner/graph/chain.h"

#include "stagecraft/partitioner/graph/downsets.h"

#include <fmt/format.h>

#include <set>
#include <tuple>
#include <utility>

namespace stagecraft {
namespace {

/// Puts nodes in a row and knows what crosses the cut behind the last. What a ready node would add changes
/// only when it becomes the last reader of something, so the ready ones stay sorted: O((nodes + edges) log).
class ChainBuilder {
 public:
  /// `group`, if it is not empty: of every node; never less than that of a node it reads.
  explicit ChainBuilder(const LayerGraph& graph, std::vector<int> group = {})
      : graph_(graph),
        group_(std::move(group)),
        successors_(graph.successors()),
        predecessors_(graph.predecessors()),
        taken_(graph.nodes.size(), false),
        turn_(graph.nodes.size(), kWaits) {
    group_.resize(graph.nodes.size(), 0);
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      waits_for_.push_back(static_cast<int>(predecessors_[n].size()));
      readers_left_.push_back(static_cast<int>(successors_[n].size()));
      grows_by_.push_back(successors_[n].empty() ? Bytes{} : graph.nodes[n].activation);
    }
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      if (readers_left_[n] == 1) becomes_last_reader(successors_[n].front(), graph.nodes[n].activation);
    }
    for (int n = static_cast<int>(graph.nodes.size()) - 1; n >= 0; --n) {  // the first becomes ready last
      if (waits_for_[to_size(n)] == 0) becomes_ready(n);
    }
  }

  [[nodiscard]] bool done() const { return ready_.empty(); }
  [[nodiscard]] Bytes crossing() const { return crossing_; }

  int take_narrowest() { return take(ready_.begin()->node); }

  /// Requires that all it reads are taken.
  int take(int node) {
    const auto at = to_size(node);
    ready_.erase(entry(node));
    taken_[at] = true;
    crossing_ += grows_by_[at];
    for (const int read : predecessors_[at]) {
      if (--readers_left_[to_size(read)] != 1) continue;
      for (const int reader : successors_[to_size(read)]) {
        if (taken_[to_size(reader)]) continue;
        becomes_last_reader(reader, graph_.nodes[to_size(read)].activation);
      }
    }
    const std::vector<int>& next = successors_[at];
    for (auto reader = next.rbegin(); reader != next.rend(); ++reader) {
      if (--waits_for_[to_size(*reader)] == 0) becomes_ready(*reader);
    }
    return node;
  }

 private:
  /// Sorted by group, then by what it adds to the bytes that cross, then by when it became ready, the latest
  /// first.
  struct Ready {
    int group;
    Bytes grows_by;
    int turn;
    int node;
    bool operator<(const Ready& other) const {
      return std::tie(group, grows_by, other.turn) < std::tie(other.group, other.grows_by, turn);
    }
  };
  static constexpr int kWaits = -1;

  [[nodiscard]] Ready entry(int node) const {
    const auto at = to_size(node);
    return {group_[at], grows_by_[at], turn_[at], node};
  }
  void becomes_ready(int node) {
    turn_[to_size(node)] = next_turn_++;
    ready_.insert(entry(node));
  }
  void becomes_last_reader(int node, Bytes read) {
    const bool is_ready = turn_[to_size(node)] != kWaits;
    if (is_ready) ready_.erase(entry(node));
    grows_by_[to_size(node)] -= read;
    if (is_ready) ready_.insert(entry(node));
  }

  const LayerGraph& graph_;
  std::vector<int> group_;
  std::vector<std::vector<int>> successors_, predecessors_;
  std::vector<int> waits_for_, readers_left_;
  std::vector<Bytes>
      grows_by_;  // its own output, if somebody reads it, less those that it is the last to read
  std::vector<bool> taken_;
  std::vector<int> turn_;  // when it became ready
  int next_turn_ = 0;
  std::set<Ready> ready_;
  Bytes crossing_;
};

std::string name_of(const LayerGraph& graph, const std::vector<int>& nodes) {
  const auto name = [&](int n) {
    const LayerNode& node = graph.nodes[to_size(n)];
    return fmt::format("{} {}", node.id, node.kind());
  };
  if (nodes.size() == 1) return name(nodes.front());
  return fmt::format("{} .. {}", name(nodes.front()), name(nodes.back()));
}

}  // namespace

std::vector<int> narrow_order(const LayerGraph& graph, const std::vector<int>& group) {
  std::vector<int> order;
  for (ChainBuilder row(graph, group); !row.done();) order.push_back(row.take_narrowest());
  return order;
}

Profile chain_profile(const Planned& planned, const std::vector<std::vector<int>>& layers,
                      std::int64_t samples) {
  Profile profile;
  Measurement& measurement = profile.measurements.emplace_back();
  measurement.micro_batch = samples;
  measurement.input = planned.loaded;
  ChainBuilder row(planned.graph);
  for (const std::vector<int>& nodes : layers) {
    LayerProfile& layer = measurement.layers.emplace_back();
    layer.name = name_of(planned.graph, nodes);
    for (const int n : nodes) {
      const LayerNode& node = planned.graph.nodes[to_size(n)];
      layer.forward.median += node.forward;
      layer.backward_weight.median += node.backward_weight();
      layer.backward_input.median += node.backward - node.backward_weight();
      layer.parameters += node.parameters;
      layer.kept_for_input += node.activation;
      if (node.parameters > Bytes{}) layer.kept_for_weight += node.activation;
      row.take(n);
    }
    layer.output = row.crossing();
  }
  return profile;
}

Profile chain_profile(const LayerGraph& graph, std::int64_t samples) {
  const Planned planned = without_dropped(graph);
  return chain_profile(planned, single_nodes(narrow_order(planned.graph)), samples);
}

LayerGraph layer_graph(const Measurement& measurement) {
  LayerGraph graph;
  for (const LayerProfile& layer : measurement.layers) {
    const int n = static_cast<int>(graph.nodes.size());
    graph.nodes.push_back({layer.name, layer.name, layer.forward.median,
                           layer.backward_input.median + layer.backward_weight.median, layer.output,
                           layer.parameters});
    if (n > 0) graph.edges.push_back({n - 1, n});
  }
  return graph;
}

}  // namespace stagecraft
