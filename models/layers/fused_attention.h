#pragma once

// softmax(q k^T / sqrt(d)) v, causal, by LibTorch's fused kernels: FlashAttention (Dao, arXiv 2307.08691) on
// CPUs, and on GPUs for narrow types; memory-efficient attention (Rabe, Staats, arXiv 2112.05682) on GPUs for
// float. None of them writes the matrix of scores.

#include "models/layers/layer.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <utility>

namespace stagecraft {

/// Whether there is a kernel for `q`, [samples, heads, tokens, d].
[[nodiscard]] bool has_fused_attention(const at::Tensor& q);
/// The mixed values, [samples, heads, tokens, d], and what backward needs besides them and q, k, v: never two
/// tensors.
[[nodiscard]] std::pair<at::Tensor, Tensors> fused_attention(const at::Tensor& q, const at::Tensor& k,
                                                             const at::Tensor& v);
/// The type that all arguments of the backward must have. Wider than what is narrow on a CPU: LibTorch 2.11's
/// narrow kernel there takes five times as long and is less exact (128 tokens, heads of 32).
[[nodiscard]] at::ScalarType fused_backward_type(const at::Tensor& qkv);
/// Gradients of q, k and v.
[[nodiscard]] std::array<at::Tensor, 3> fused_attention_backward(const at::Tensor& grad_mixed,
                                                                 const at::Tensor& q, const at::Tensor& k,
                                                                 const at::Tensor& v, const at::Tensor& mixed,
                                                                 const Tensors& kept);

}  // namespace stagecraft
