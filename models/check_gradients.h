#pragma once

// Holds a layer's written-out backward against LibTorch's autograd through its own forward. For tests of
// layers of one's own.

#include "stagecraft/models/layer.h"

#include <ATen/core/Tensor.h>

namespace stagecraft {

/// Draws parameters and buffers in double precision and checks, for `input` (double, or tokens) in training
/// mode:
/// - backward_input and backward_weight give autograd's gradients, and leave nothing kept;
/// - two micro-batches with their halves apart (I I W W) add up to the bits of I W I W;
/// - without an input gradient the weights' gradients are the same;
/// - `input` and the parameters are not modified; tensors on the meta device give the same shape.
/// Throws InternalError that names the layer, the tensor and the largest difference. Dropout must be off: its
/// kernel is not differentiable.
void check_gradients(const Layer& layer, const at::Tensor& input);

}  // namespace stagecraft
