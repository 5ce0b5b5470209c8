#pragma once

// What a graph takes, from its file alone: the storages that its parts make, hand on and free, followed from
// step to step as replay.h would run them.

#include "models/captured/format/graph.h"
#include "models/layers/layer_estimate.h"

#include <cstdint>

namespace stagecraft::captured {

/// For micro-batches of b samples. `inputs` and `outputs` are the graph's own. `needs_input_gradient`: false for a model's first layer.
[[nodiscard]] LayerEstimate estimate(const Graph& graph, std::int64_t b, bool needs_input_gradient);

}  // namespace stagecraft::captured
