#pragma once

// Between graphs of operators and chains of layers.
//
// The planner of chains plans a graph when its nodes are put in a row so that every edge points onwards: then a cut
// between two neighbours is a cut of the graph, and what crosses it is what all nodes before it put out that some
// node behind it reads, each output once. That much is exact. What one row does not have are the cuts that no prefix
// of it makes. So the row is one whose prefixes balance what can be done at the same time: next comes the node that
// could begin first if every node had a device of its own. Branches that could run side by side lie side by side, and
// a cut goes through all of them (docs/design/pipedream.md says what that costs beside all cuts there are).

#include "partitioner/graph/layer_graph.h"
#include "partitioner/plan/profile.h"

#include <cstdint>
#include <vector>

namespace stagecraft {

/// All nodes, in that row; of those that could begin at the same time first the one after which the fewest bytes
/// cross, of equal ones that which became ready last. O(n log n) in nodes and edges.
[[nodiscard]] std::vector<int> row_of(const LayerGraph& graph);

/// The graph as a profile of one layer per node, for micro-batches of `samples`: as many as one mini-batch of
/// the graph's has, which a graph.txt does not say. Sources called "Input..." are what stage 0 loads; sinks
/// called "__getitem__..." are unused and left out. Where a graph.txt says less than a profile:
///   backward      half of it is the weight half where a node has parameters, none elsewhere
///   memory        every node keeps its activation from forward to backward, one with parameters also to the
///                 weight half; no transients, no optimizer state
///   spread, step  none
/// Throws InputError when no node is left.
[[nodiscard]] Profile chain_profile(const LayerGraph& graph, std::int64_t samples);

/// A chain of layers as a graph, for planners of graphs.
[[nodiscard]] LayerGraph layer_graph(const Measurement& measurement);

}  // namespace stagecraft
