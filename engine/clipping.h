#pragma once

// Clipping by global norm. The norm of all stages' gradients is the root of per-parameter sums of squares,
// added in layer order: the same bits wherever the cuts are.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace stagecraft {

/// One a gradient, in double precision whatever the gradient's own. Of a device's gradients, all of one, the
/// numbers are fetched together: it is waited for once, and `meanwhile` called (AsyncScalars::await).
[[nodiscard]] std::vector<double> sums_of_squares(
    const std::vector<at::Tensor>& gradients, const std::function<void()>& meanwhile = [] {});

/// What gradients of global norm `norm` are multiplied by to have at most `max_norm`: PyTorch's
/// clip_grad_norm_, max_norm / (norm + 1e-6) and at most 1.
[[nodiscard]] double clip_factor(double norm, double max_norm);

}  // namespace stagecraft
