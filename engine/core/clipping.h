#pragma once

// The gradient's global norm, and clipping by it. The norm is the root of the gradients' sums of squares, which
// are taken and added in double precision, in an order that knows layers but no stages: the same bits wherever
// the cuts are.
//   The CPU    adds them in layer order.
//   A device   adds halves to halves, which takes few launches for many gradients. Squares are taken by LibTorch's norm
//              of a list: its kernel converts as it reads, so no gradient is copied. With a gradient of n numbers, the
//              sum of squares is within (2 n + 3) 2^-53 of the CPU's, relatively: each is within n 2^-53 of the exact
//              sum, as any order of additions is (Higham, Accuracy and Stability of Numerical Algorithms, 4.2), and
//              the device's is a root and a square more. The norm of P gradients is within (n + P + 4) 2^-53.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace stagecraft {

/// One per gradient, in double precision whatever the gradient's own; 0 for an undefined one. Of a device's
/// gradients, all of one, the numbers are fetched together: it is waited for once, and `meanwhile` called
/// (AsyncScalars::await).
[[nodiscard]] std::vector<double> sums_of_squares(
    const std::vector<at::Tensor>& gradients, const std::function<void()>& meanwhile = [] {});
/// The same numbers as a tensor on the device, of some gradients there, which is not waited for.
[[nodiscard]] at::Tensor squares_on_device(const std::vector<at::Tensor>& gradients);

/// Of all gradients' sums of squares, in layer order, which `device` made.
[[nodiscard]] double norm_of(const std::vector<double>& squares, at::Device device);
/// The same bits, made by a device that holds all of them.
[[nodiscard]] at::Tensor norm_of(const at::Tensor& squares);

/// What gradients of global norm `norm` are multiplied by to have at most `max_norm`: PyTorch's
/// clip_grad_norm_, max_norm / (norm + 1e-6) and at most 1.
[[nodiscard]] double clip_factor(double norm, double max_norm);
[[nodiscard]] at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

/// Multiplies gradients of one type by a number, or by one in double precision on their device: the same bits.
void multiply(const std::vector<at::Tensor>& gradients, double factor);
void multiply(const std::vector<at::Tensor>& gradients, const at::Tensor& factor);

}  // namespace stagecraft
