#pragma once

// Attention of captured graphs on devices. Captures are made on a CPU, so their graphs have its form,
// `aten::_scaled_dot_product_flash_attention_for_cpu`. On a GPU it runs by the kernel that eager PyTorch would
// take there for the same tensors, by LibTorch's own choice (at::_fused_sdp_choice), which knows the GPU:
//
//   flash      float16 and bfloat16 without a mask, from compute capability 8.0 on; heads of at most 192 numbers,
//              causal with as many queries as keys. Other sizes than multiples of 8 are padded, as eager does
//   efficient  float32 and narrow types, with or without a mask of their type; heads' sizes in multiples of 4
//              (float32) or 8
//   plain      all else, such as float64 and grouped queries with a mask: softmax(q k^T scale + mask) v, in the
//              type that products accumulate in. The backward makes the probabilities again from their log-sum
//
// Where that differs from eager: never cuDNN's kernel, which has no deterministic backward and which the engine
// turns off (prepare_device); a mask of another type than the queries is added in float32; heads of more than
// 192 numbers are not flash's, whose backward some GPUs lack.
//
// All repeat their bits where the run asks for it (cuda.deterministic): flash and efficient have an order of
// additions for that setting, plain is made of products and sums along rows. None draws random numbers, since
// graphs have no dropout here (operators.h). A query that no key is open to mixes zeros and gives zeros back,
// as on the CPU.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace stagecraft::captured {

/// [samples, heads, tokens, size]; keys and values may have fewer heads, which groups of queries share.
struct Attention {
  at::Tensor q, k, v;
  bool causal = false;               ///< query i sees keys up to i
  std::optional<at::Tensor> mask{};  ///< added to the scores (bool: false is closed), or null
  std::optional<double> scale{};     ///< absent: 1 / sqrt(size)
};

enum class AttentionKernel : std::uint8_t { flash, efficient, plain };

/// On the device that q lies on.
[[nodiscard]] AttentionKernel attention_kernel(const Attention& attention);

/// Mixed values, and log-sums [samples, heads, queries] (efficient: queries in whole blocks of 32). Shapes, types
/// and strides are the CPU's, but for those of the log-sums.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor> attend(AttentionKernel kernel, const Attention& attention);
/// Gradients of q, k and v, as the CPU's. The log-sums may be another kernel's.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(AttentionKernel kernel,
                                                                             const Attention& attention,
                                                                             const at::Tensor& grad_mixed,
                                                                             const at::Tensor& mixed,
                                                                             const at::Tensor& log_sum);

}  // namespace stagecraft::captured
