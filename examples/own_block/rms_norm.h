#pragma once

// The norm inside the block's layers. Forward and backward are plain functions of tensors.

#include <ATen/ATen.h>

#include <stagecraft/engine.h>

namespace llama {

inline constexpr double kEpsilon = 1e-5;  ///< of the norms inside layers

struct Normed {
  at::Tensor output;  ///< normal * weight
  at::Tensor normal;  ///< x * scale
  at::Tensor scale;   ///< 1 / sqrt(mean(x^2) + epsilon), one per row
};
inline Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  at::Tensor scale = x.square().mean(-1, /*keepdim=*/true).add(epsilon).rsqrt();
  at::Tensor normal = x * scale;
  return {normal * weight, normal, scale};
}

struct NormGradients {
  at::Tensor input, weight;
};
inline NormGradients rms_norm_backward(const at::Tensor& grad_output, const at::Tensor& normal,
                                       const at::Tensor& scale, const at::Tensor& weight) {
  const at::Tensor grad_normal = grad_output * weight;
  const at::Tensor along = (grad_normal * normal).mean(-1, /*keepdim=*/true);
  return {scale * (grad_normal - normal * along), (grad_output * normal).flatten(0, -2).sum(0)};
}

/// Starts as ones; read at full precision in mixed-precision runs.
inline stagecraft::ParameterSpec norm_weight(std::int64_t hidden_size) {
  return stagecraft::functional::norm_scale("norm", hidden_size);
}

}  // namespace llama
