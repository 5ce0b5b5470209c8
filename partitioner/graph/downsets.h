#pragma once

// All the places where a graph can be cut in two: its downsets (ideals), sets of nodes with everything that
// they read. Stages are the differences of nested downsets, so a planner that goes over these considers every
// pipeline that the graph has (Tarnawski et al., "Efficient algorithms for device placement of DNN graph
// operators", NeurIPS 2020, section 4).
//
// Adding one node leads from a downset to the next larger ones; all nested sequences are paths over such
// steps. So whatever is a sum over nodes and cuts is planned in time proportional to the steps, although
// pairs of downsets are their number squared (downset_partition.h).

#include "stagecraft/partitioner/graph/layer_graph.h"

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace stagecraft {

/// Nodes that are taken together, blocks of which none reads in a circle from the others; every node is in
/// one.
using Blocks = std::vector<std::vector<int>>;

/// What stages are made of, summed over nodes.
struct NodeSums {
  double forward = 0;  ///< seconds
  double backward_input = 0;
  double backward_weight = 0;
  double parameters = 0;  ///< bytes

  [[nodiscard]] double compute() const { return forward + backward_input + backward_weight; }
  NodeSums& operator+=(const NodeSums& other);
  NodeSums& operator-=(const NodeSums& other);
};

/// One step adds a block; a step and a downset are some 16 and 48 bytes.
struct DownsetLimits {
  std::size_t downsets = 300'000;
  std::size_t steps = 2'000'000;
};

class Downsets {
 public:
  struct Step {
    int block;
    int to;  ///< the downset with it
  };

  /// Those that are unions of blocks; nothing if there are more than the limits allow.
  [[nodiscard]] static std::optional<Downsets> of(const LayerGraph& graph, const Blocks& blocks,
                                                  const DownsetLimits& limits = {});

  /// The first is empty, the last has all; a larger one stands behind a smaller one.
  [[nodiscard]] int size() const { return static_cast<int>(sums_.size()); }
  [[nodiscard]] int all() const { return size() - 1; }
  [[nodiscard]] std::span<const Step> steps(int downset) const {
    const auto at = to_size(downset);
    return {steps_.data() + first_step_[at], steps_.data() + first_step_[at + 1]};
  }
  [[nodiscard]] std::size_t steps() const { return steps_.size(); }
  [[nodiscard]] const Blocks& blocks() const { return blocks_; }
  [[nodiscard]] const NodeSums& sums(int downset) const { return sums_[to_size(downset)]; }
  [[nodiscard]] const NodeSums& of_block(int block) const { return block_sums_[to_size(block)]; }
  /// Bytes that cross the cut behind a downset: of every node in it that one outside reads, once.
  [[nodiscard]] double crossing(int downset) const { return crossing_[to_size(downset)]; }
  /// Its nodes, in no order.
  [[nodiscard]] std::vector<int> nodes(int downset) const;

 private:
  friend class DownsetWalk;

  Blocks blocks_;
  std::vector<NodeSums> block_sums_;
  std::vector<NodeSums> sums_;
  std::vector<double> crossing_;
  std::vector<std::size_t> first_step_;  // per downset, and the end
  std::vector<Step> steps_;
  std::vector<int> before_, added_;  // per downset: a smaller one, and the block that makes the difference
};

/// Each node a block of its own.
[[nodiscard]] Blocks single_nodes(const std::vector<int>& nodes);

}  // namespace stagecraft
