#pragma once

// Attention proper: every head of every token mixes the values of the tokens up to it,
// softmax(q k^T / sqrt(d)) v. No parameters.

#include "models/layers/dropout_masks.h"
#include "models/layers/layer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace stagecraft {

class CausalAttention {
 public:
  CausalAttention(std::int64_t heads, double dropout) : heads_(heads), dropout_(dropout, kStream) {}

  /// `qkv` [samples, tokens, 3 * hidden_size], q then k then v, heads side by side in each. Returns the mixed
  /// values [samples, tokens, hidden_size] and what backward needs besides them.
  [[nodiscard]] std::pair<at::Tensor, Tensors> forward(const at::Tensor& qkv, const Context& context) const;
  /// d qkv, dense.
  [[nodiscard]] at::Tensor backward(const at::Tensor& grad_mixed, const at::Tensor& mixed,
                                    Tensors kept) const;

  [[nodiscard]] std::int64_t heads() const { return heads_; }
  [[nodiscard]] const Dropout& dropout() const { return dropout_; }

 private:
  static constexpr std::uint32_t kStream = 1;  // 0 is the branch's own dropout
  std::int64_t heads_;
  Dropout dropout_;
};

}  // namespace stagecraft
