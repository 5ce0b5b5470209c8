#include "partitioner/graph/chain.h"

#include "partitioner/graph/dropped.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {
namespace {

/// Puts nodes in a row and knows what crosses the cut behind the last.
class Row {
 public:
  explicit Row(const LayerGraph& graph)
      : graph_(graph), successors_(graph.successors()), predecessors_(graph.predecessors()) {
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      waits_for_.push_back(static_cast<int>(predecessors_[n].size()));
      readers_left_.push_back(static_cast<int>(successors_[n].size()));
    }
    for (int n = static_cast<int>(graph.nodes.size()) - 1; n >= 0; --n) {  // the first becomes ready last
      if (waits_for_[static_cast<std::size_t>(n)] == 0) ready_.push_back(n);
    }
  }

  [[nodiscard]] bool done() const { return ready_.empty(); }
  [[nodiscard]] Bytes crossing() const { return crossing_; }

  int take_narrowest() {
    std::size_t best = ready_.size() - 1;
    Bytes least = grows_by(ready_[best]);
    for (std::size_t n = best; n-- > 0;) {
      const Bytes change = grows_by(ready_[n]);
      if (change >= least) continue;
      least = change;
      best = n;
    }
    const int node = ready_[best];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(best));
    crossing_ += least;
    for (const int read : predecessors_[static_cast<std::size_t>(node)]) {
      --readers_left_[static_cast<std::size_t>(read)];
    }
    const std::vector<int>& next = successors_[static_cast<std::size_t>(node)];
    for (auto reader = next.rbegin(); reader != next.rend(); ++reader) {
      if (--waits_for_[static_cast<std::size_t>(*reader)] == 0) ready_.push_back(*reader);
    }
    return node;
  }

 private:
  /// Its own output, if somebody reads it, less those that it is the last to read.
  [[nodiscard]] Bytes grows_by(int node) const {
    Bytes change = successors_[static_cast<std::size_t>(node)].empty()
                       ? Bytes{}
                       : graph_.nodes[static_cast<std::size_t>(node)].activation;
    for (const int read : predecessors_[static_cast<std::size_t>(node)]) {
      if (readers_left_[static_cast<std::size_t>(read)] == 1) {
        change -= graph_.nodes[static_cast<std::size_t>(read)].activation;
      }
    }
    return change;
  }

  const LayerGraph& graph_;
  std::vector<std::vector<int>> successors_, predecessors_;
  std::vector<int> waits_for_, readers_left_;
  std::vector<int> ready_;  // in the order in which they became so
  Bytes crossing_;
};

LayerProfile layer_of(const LayerNode& node, Bytes boundary) {
  LayerProfile layer;
  layer.name = fmt::format("{} {}", node.id, node.kind());
  layer.forward.median = node.forward;
  const bool has_weights = node.parameters > Bytes{};
  layer.backward_weight.median = has_weights ? node.backward / 2 : Seconds{};
  layer.backward_input.median = node.backward - layer.backward_weight.median;
  layer.parameters = node.parameters;
  layer.output = boundary;
  layer.kept_for_input = node.activation;
  layer.kept_for_weight = has_weights ? node.activation : Bytes{};
  return layer;
}

}  // namespace

std::vector<int> narrow_order(const LayerGraph& graph) {
  std::vector<int> order;
  for (Row row(graph); !row.done();) order.push_back(row.take_narrowest());
  return order;
}

Profile chain_profile(const LayerGraph& graph, std::int64_t samples) {
  const Planned planned = without_dropped(graph);
  if (planned.graph.nodes.empty()) {
    throw InputError("nothing is left to plan: the graph has no nodes but inputs and unused outputs");
  }
  Profile profile;
  Measurement& measurement = profile.measurements.emplace_back();
  measurement.micro_batch = samples;
  measurement.input = planned.loaded;
  for (Row row(planned.graph); !row.done();) {
    const int node = row.take_narrowest();
    measurement.layers.push_back(
        layer_of(planned.graph.nodes[static_cast<std::size_t>(node)], row.crossing()));
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
