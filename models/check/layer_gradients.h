#pragma once

// Both halves of a layer's backward against the derivative of its forward.

#include "models/check/layer_check.h"

namespace stagecraft {

/// Fills in the two aspects of gradients: in double precision with drawn weights, in single precision where the layer
/// does not compute in double. A parameter that `backward_weight` never adds to has a missing gradient.
void check_layer_gradients(const Layer& layer, const LayerTrial& trial, LayerChecked& checked);

}  // namespace stagecraft
