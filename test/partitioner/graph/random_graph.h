#pragma once

// Graphs for properties: whole numbers, so that sums are exact.

#include "partitioner/graph/layer_graph.h"

namespace stagecraft::test {

/// Of at most so many nodes, with random edges; now and then a source is an input, or a sink an unused
/// output, and there may be several of both. Call within a property.
[[nodiscard]] LayerGraph random_graph(int most);

/// From 0, evenly, whatever the size RapidCheck has come to: it begins with small ones.
[[nodiscard]] int random_below(int end);

/// A node that takes `work` seconds, a quarter of it forward.
[[nodiscard]] LayerNode plain_node(int index, double work, std::int64_t activation, std::int64_t parameters);

}  // namespace stagecraft::test
