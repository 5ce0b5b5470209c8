#pragma once

// Between graphs of operators and chains of layers.
//
// A chain's planner can plan a graph when its nodes are put in a row so that every edge points onwards: then
// a cut between two neighbours is a real cut of the graph, and what crosses it is what all nodes before it
// put out that some node behind it reads, each output once. That much is exact. What one row does not have
// are the cuts that no prefix of it makes: through two branches that the row has one after the other
// (graph_planner.h finds those). The row is chosen so that little crosses its cuts: of the nodes that are
// ready, next comes the one after which the fewest bytes cross; of equal ones that which became ready last,
// so that a branch is followed to its end.

#include "stagecraft/partitioner/graph/dropped.h"
#include "stagecraft/partitioner/profile.h"

#include <cstdint>
#include <vector>

namespace stagecraft {

/// All nodes, in that row. With a `group` for every node, never less than that of a node it reads, those of
/// one group come before those of the next, so that the graph can be cut between them. O(n log n) in nodes
/// and edges.
[[nodiscard]] std::vector<int> narrow_order(const LayerGraph& graph, const std::vector<int>& group = {});

/// The graph as a profile of one layer per node, for micro-batches of `samples`: as many as one mini-batch of
/// the graph's has, which a graph.txt does not say. Sources called "Input..." are what stage 0 loads; sinks
/// called "__getitem__..." are unused and left out. Where a graph.txt says less than a profile:
///   backward      half of it is the weight half where a node has parameters, none elsewhere
///   memory        every node keeps its activation from forward to backward, one with parameters also to the
///                 weight half; no transients, no optimizer state
///   spread, step  none
/// Throws InputError when no node is left.
[[nodiscard]] Profile chain_profile(const LayerGraph& graph, std::int64_t samples);

/// Likewise with rows of one's own: `layers` are the nodes of every layer, all of them in an order along the
/// edges. Requires a node at least.
[[nodiscard]] Profile chain_profile(const Planned& planned, const std::vector<std::vector<int>>& layers,
                                    std::int64_t samples);

/// A chain of layers as a graph, for planners of graphs.
[[nodiscard]] LayerGraph layer_graph(const Measurement& measurement);

}  // namespace stagecraft
