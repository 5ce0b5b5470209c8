#include "models/layers/causal_attention.h"

#include "models/layers/functional.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <array>
#include <cmath>
#include <limits>

namespace stagecraft {
namespace {

/// [samples, tokens, 3 * width] seen as q, k, v, each [samples, heads, tokens, width / heads].
std::array<at::Tensor, 3> split_heads(const at::Tensor& qkv, std::int64_t heads) {
  const at::Tensor view = qkv.view({qkv.size(0), qkv.size(1), 3, heads, -1}).permute({2, 0, 3, 1, 4});
  return {view[0], view[1], view[2]};
}

/// [samples, heads, tokens, d] as [samples, tokens, heads * d]; a view where the kernel wrote tokens first.
at::Tensor join_heads(const at::Tensor& heads) {
  return heads.transpose(1, 2).reshape({heads.size(0), heads.size(2), -1});
}

at::Tensor see_heads(const at::Tensor& joined, std::int64_t heads) {
  return joined.view({joined.size(0), joined.size(1), heads, -1}).transpose(1, 2);
}

/// d q, d k, d v into one dense [samples, tokens, 3 * width] of `options`.
at::Tensor join_gradients(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                          const at::TensorOptions& options) {
  const std::int64_t samples = dq.size(0), heads = dq.size(1), tokens = dq.size(2), size = dq.size(3);
  at::Tensor joined = at::empty({samples, tokens, 3, heads, size}, options);
  joined.select(2, 0).copy_(dq.transpose(1, 2));
  joined.select(2, 1).copy_(dk.transpose(1, 2));
  joined.select(2, 2).copy_(dv.transpose(1, 2));
  return joined.view({samples, tokens, 3 * heads * size});
}

/// Of fewer bits than float in float: there the narrow kernel takes five times as long and is less exact
/// (LibTorch 2.11, 128 tokens, heads of 32).
at::Tensor flash_backward(const at::Tensor& qkv, const at::Tensor& log_sum, const at::Tensor& grad_mixed,
                          const at::Tensor& mixed, std::int64_t heads) {
  const at::ScalarType exact = at::toOpMathType(qkv.scalar_type());
  const auto [q, k, v] = split_heads(qkv.to(exact), heads);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      see_heads(grad_mixed.to(exact), heads), q, k, v, see_heads(mixed.to(exact), heads), log_sum, 0, true);
  return join_gradients(dq, dk, dv, qkv.options());
}

}  // namespace

std::pair<at::Tensor, Tensors> CausalAttention::forward(const at::Tensor& qkv, const Context& context) const {
  if (qkv.is_meta()) return {at::empty({qkv.size(0), qkv.size(1), qkv.size(2) / 3}, qkv.options()), {}};
  const auto [q, k, v] = split_heads(qkv, heads_);
  if (!dropout_.applies(context)) {
    auto [mixed, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, true);
    return {join_heads(mixed), {qkv, std::move(log_sum)}};
  }
  const std::int64_t tokens = qkv.size(1);
  const at::Tensor future =
      at::full({tokens, tokens}, -std::numeric_limits<double>::infinity(), qkv.options()).triu_(1);
  at::Tensor scores = at::matmul(q, k.transpose(-2, -1));
  scores.mul_(1 / std::sqrt(static_cast<double>(q.size(-1)))).add_(future);
  at::Tensor weights = at::_softmax(scores, -1, false);
  at::Tensor mask = dropout_.mask(weights.sizes(), context.key);
  at::Tensor mixed = join_heads(at::matmul(dropout_.apply(weights, mask), v));
  return {std::move(mixed), {qkv, std::move(weights), std::move(mask)}};
}

at::Tensor CausalAttention::backward(const at::Tensor& grad_mixed, const at::Tensor& mixed,
                                     Tensors kept) const {
  if (kept.size() == 2) return flash_backward(kept[0], kept[1], grad_mixed, mixed, heads_);
  const auto [q, k, v] = split_heads(kept[0], heads_);
  const at::Tensor dmixed = see_heads(grad_mixed, heads_);
  const at::Tensor& weights = kept[1];
  const at::Tensor& mask = kept[2];
  const at::Tensor dv = at::matmul(dropout_.apply(weights, mask).transpose(-2, -1), dmixed);
  at::Tensor dweights = at::matmul(dmixed, v.transpose(-2, -1));
  dropout_.apply_(dweights, mask);
  at::Tensor dscores = at::_softmax_backward_data(dweights, weights, -1, weights.scalar_type());
  dscores.mul_(1 / std::sqrt(static_cast<double>(q.size(-1))));
  return join_gradients(at::matmul(dscores, k), at::matmul(dscores.transpose(-2, -1), q), dv,
                        kept[0].options());
}

}  // namespace stagecraft
