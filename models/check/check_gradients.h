#pragma once

// Holds a layer against its contract, its written-out backward against LibTorch's autograd through its own forward
// among it. For tests of layers of one's own.

#include "models/layers/layer.h"

#include <ATen/core/Tensor.h>

namespace stagecraft {

/// Everything that check/layer_check.h says of a layer, for `input` (numbers, or tokens; its first dimension is that
/// of the samples), in double and in single precision.
/// Throws InternalError that names the layer and all that is wrong with it. A whole config's layers are tried by
/// `check-layers CONFIG`.
void check_gradients(const Layer& layer, const at::Tensor& input);

}  // namespace stagecraft
