#pragma once

// The gradient's global norm, and clipping by it, with the bits of PyTorch's clip_grad_norm_: each gradient's norm in
// its own precision, then the norm of these, in the order of the model's parameters(). That order knows layers but no
// stages: the same bits wherever the cuts are.
//
// LibTorch's kernels split long sums by the number of threads, as they do everywhere else. A device's norm of norms is
// one block's work up to 131,072 gradients, and so the same on all devices of a kind of processor.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace stagecraft {

/// One per gradient; 0 for an undefined one. Of a device's gradients, all of one, the numbers are fetched together: it
/// is waited for once, and `meanwhile` called (AsyncScalars::await).
[[nodiscard]] std::vector<double> norms_of(
    const std::vector<at::Tensor>& gradients, const std::function<void()>& meanwhile = [] {});
/// The same numbers as a tensor on the device, of some gradients there, which is not waited for.
[[nodiscard]] at::Tensor norms_on_device(const std::vector<at::Tensor>& gradients);

/// Of the norms in these places, in this order (undefined: all, as they lie): a tensor of one number, in their type and
/// on their device, where `order` is too.
[[nodiscard]] at::Tensor norm_of(const at::Tensor& norms, const at::Tensor& order);
/// The same of norms that ranks have told each other; `kind`: their type, and the device that adds them up.
[[nodiscard]] double norm_of(const std::vector<double>& norms, const std::vector<std::int64_t>& order,
                             const at::TensorOptions& kind);

/// What gradients of global norm `norm` are multiplied by to have at most `max_norm`, in the norm's type: PyTorch's
/// max_norm / (norm + 1e-6) and at most 1.
[[nodiscard]] at::Tensor clip_factor(const at::Tensor& norm, double max_norm);
[[nodiscard]] double clip_factor(double norm, double max_norm, at::ScalarType type);

/// Multiplies gradients of one type by a number that it has, or by one on their device: the same bits.
void multiply(const std::vector<at::Tensor>& gradients, double factor);
void multiply(const std::vector<at::Tensor>& gradients, const at::Tensor& factor);

}  // namespace stagecraft
