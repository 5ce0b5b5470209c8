#pragma once

// A layer's state as checkpoints have it: read from a stage, set in it, looked through. Called between segments; a
// device is waited for.

#include "engine/core/stage.h"
#include "engine/core/worker.h"

#include <string>

namespace stagecraft {

/// As Worker::state.
[[nodiscard]] LayerState layer_state_of(Stage& stage, int layer, const Layer& its, bool brought);

/// As Worker::set_state.
void set_layer_state(Stage& stage, int layer, const Layer& its, const WorkerOptions& options,
                     LayerState state);

/// The name of a tensor of the layer's state that is not finite: "exp_avg of weight"; empty where all are.
[[nodiscard]] std::string not_finite_in(Stage& stage, int layer, const Layer& its);

}  // namespace stagecraft
