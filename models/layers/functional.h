#pragma once

// The pieces layers share: the forward of one operator and its backward halves, on ATen's own kernels.

#include "models/layers/layer.h"
#include "models/tensors/matrix_products.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::functional {

/// Throws InternalError.
[[noreturn]] void kept_otherwise(std::size_t wanted, std::size_t found);

/// Takes `tensors` apart, leaving it empty: `auto [x, mean] = take<2>(kept.for_input)`. Throws InternalError
/// where they are fewer.
template <std::size_t count>
[[nodiscard]] std::array<at::Tensor, count> take(Tensors& tensors) {
  if (tensors.size() < count) kept_otherwise(count, tensors.size());
  std::array<at::Tensor, count> taken;
  for (std::size_t i = 0; i < count; ++i) taken[i] = std::move(tensors.at(i));
  tensors.clear();
  return taken;
}

/// [a, b, c] seen as [a * b, c].
[[nodiscard]] at::Tensor rows(const at::Tensor& tensor);

/// x W^T + b over the last dimension; `bias` may be undefined. `products` are those of the layer's site.
[[nodiscard]] at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                MatrixProducts products = MatrixProducts::blas);
[[nodiscard]] at::Tensor linear_grad_input(const at::Tensor& grad_output, const at::Tensor& weight,
                                           MatrixProducts products = MatrixProducts::blas);
/// dW of parameter `weight` and, unless negative, db of parameter `bias`.
void linear_grad_weight(GradientSink& sink, int weight, int bias, const at::Tensor& grad_output,
                        const at::Tensor& x);

/// The two parameters of a norm, 1 and 0 at first; read at full precision, as the kernels have it for inputs
/// of fewer bits.
[[nodiscard]] ParameterSpec norm_scale(const std::string& name, std::int64_t features);
[[nodiscard]] ParameterSpec norm_shift(const std::string& name, std::int64_t features);

struct Normed {
  at::Tensor output, mean, rstd;
};
/// Over the last dimension.
[[nodiscard]] Normed layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                double epsilon);
/// Of a layer norm that is part of another layer; PyTorch's default.
inline constexpr double kLayerNormEpsilon = 1e-5;

struct NormGradients {
  at::Tensor input, weight, bias;
};
/// All three in one pass: the parameters' gradients are small, and made now they save keeping x and dy for
/// later.
[[nodiscard]] NormGradients layer_norm_backward(const at::Tensor& grad_output, const at::Tensor& x,
                                                const at::Tensor& mean, const at::Tensor& rstd,
                                                const at::Tensor& weight, const at::Tensor& bias,
                                                bool needs_input_gradient);

}  // namespace stagecraft::functional
