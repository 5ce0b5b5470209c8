#pragma once

// PipeDream's walk over antichains as its graph.py describes it, slow and to the letter: what states.h says
// is the same walk is held against it.

#include "partitioner/graph/layer_graph.h"

#include <map>
#include <set>

namespace stagecraft::test {

/// For every state, the nodes before the cut and the bytes that are said to cross it.
[[nodiscard]] std::map<std::set<int>, double> walk_antichains(const LayerGraph& graph);

}  // namespace stagecraft::test
