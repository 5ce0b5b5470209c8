#include "partitioner/graph/chain.h"

#include "partitioner/graph/dropped.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace stagecraft {
namespace {

/// Of each node: when it could begin if every node had a device of its own and transfers took no time.
std::vector<Seconds> first_moments(const LayerGraph& graph) {
  std::vector<Seconds> begins(graph.nodes.size());
  const std::vector<std::vector<int>> successors = graph.successors();
  for (const int node : topological_order(graph)) {
    const Seconds ends = begins[to_size(node)] + graph.nodes[to_size(node)].compute();
    for (const int reader : successors[to_size(node)]) {
      begins[to_size(reader)] = std::max(begins[to_size(reader)], ends);
    }
  }
  return begins;
}

/// Puts nodes in a row and knows what crosses the cut behind the last. What a ready node would add changes
/// only when it becomes the last reader of something, so the ready ones stay sorted: O((nodes + edges) log).
class RowBuilder {
 public:
  explicit RowBuilder(const LayerGraph& graph)
      : graph_(graph),
        begins_(first_moments(graph)),
        successors_(graph.successors()),
        predecessors_(graph.predecessors()),
        taken_(graph.nodes.size(), false),
        turn_(graph.nodes.size(), kWaits) {
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

  int take_next() {
    const int node = ready_.begin()->node;
    const auto at = to_size(node);
    ready_.erase(ready_.begin());
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
  struct Ready {
    Seconds begins;
    Bytes grows_by;  // what it adds to the bytes that cross
    int turn;        // when it became ready: the latest first
    int node;
    bool operator<(const Ready& other) const {
      return std::tie(begins, grows_by, other.turn) < std::tie(other.begins, other.grows_by, turn);
    }
  };
  static constexpr int kWaits = -1;

  [[nodiscard]] Ready entry(int node) const {
    const auto at = to_size(node);
    return {begins_[at], grows_by_[at], turn_[at], node};
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
  std::vector<Seconds> begins_;
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

}  // namespace

std::vector<int> row_of(const LayerGraph& graph) {
  std::vector<int> row;
  for (RowBuilder builder(graph); !builder.done();) row.push_back(builder.take_next());
  return row;
}

Profile chain_profile(const LayerGraph& graph, std::int64_t samples) {
  const Planned planned = without_dropped(graph);
  Profile profile;
  Measurement& measurement = profile.measurements.emplace_back();
  measurement.micro_batch = samples;
  measurement.input = planned.loaded;
  for (RowBuilder row(planned.graph); !row.done();) {
    const LayerNode& node = planned.graph.nodes[to_size(row.take_next())];
    LayerProfile& layer = measurement.layers.emplace_back();
    layer.name = fmt::format("{} {}", node.id, node.kind());
    layer.forward.median = node.forward;
    layer.backward_weight.median = node.backward_weight();
    layer.backward_input.median = node.backward - node.backward_weight();
    layer.parameters = node.parameters;
    layer.kept_for_input = node.activation;
    if (node.parameters > Bytes{}) layer.kept_for_weight = node.activation;
    layer.output = row.crossing();
  }
  return profile;
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
