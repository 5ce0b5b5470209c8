#include "models/layers/causal_attention.h"

#include "models/layers/fused_attention.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <limits>

namespace stagecraft {
namespace {

/// [samples, tokens, 3 * hidden_size] seen as q, k, v, each [samples, heads, tokens, hidden_size / heads].
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

/// d q, d k, d v into one dense [samples, tokens, 3 * hidden_size] of `options`.
at::Tensor join_gradients(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                          const at::TensorOptions& options) {
  const std::int64_t samples = dq.size(0), heads = dq.size(1), tokens = dq.size(2), size = dq.size(3);
  at::Tensor joined = at::empty({samples, tokens, 3, heads, size}, options);
  joined.select(2, 0).copy_(dq.transpose(1, 2));
  joined.select(2, 1).copy_(dk.transpose(1, 2));
  joined.select(2, 2).copy_(dv.transpose(1, 2));
  return joined.view({samples, tokens, 3 * heads * size});
}

/// q, k and v, the weights, and the mask of their dropout. What fused kernels keep is of another number.
constexpr std::size_t kComposed = 3;

}  // namespace

std::pair<at::Tensor, Tensors> CausalAttention::forward(const at::Tensor& qkv, const Context& context) const {
  if (qkv.is_meta()) return {at::empty({qkv.size(0), qkv.size(1), qkv.size(2) / 3}, qkv.options()), {}};
  const auto [q, k, v] = split_heads(qkv, heads_);
  const bool drops = dropout_.applies(context);
  if (!drops && has_fused_attention(q)) {
    auto [mixed, kept] = fused_attention(q, k, v);
    kept.insert(kept.begin(), qkv);
    return {join_heads(mixed), std::move(kept)};
  }
  const std::int64_t tokens = qkv.size(1);
  const at::Tensor future =
      at::full({tokens, tokens}, -std::numeric_limits<double>::infinity(), qkv.options()).triu_(1);
  at::Tensor scores = at::matmul(q, k.transpose(-2, -1));
  scores.mul_(1 / std::sqrt(static_cast<double>(q.size(-1)))).add_(future);
  at::Tensor weights = at::_softmax(scores, -1, false);
  at::Tensor mask = drops ? dropout_.mask(weights.sizes(), context.key, qkv.device()) : at::Tensor();
  at::Tensor mixed = join_heads(at::matmul(drops ? dropout_.apply(weights, mask) : weights, v));
  return {std::move(mixed), Tensors{qkv, std::move(weights), std::move(mask)}};
}

at::Tensor CausalAttention::backward(const at::Tensor& grad_mixed, const at::Tensor& mixed,
                                     Tensors kept) const {
  const at::Tensor qkv = kept.front();
  if (kept.size() != kComposed) {
    kept.erase(kept.begin());
    const at::ScalarType type = fused_backward_type(qkv);
    const auto [q, k, v] = split_heads(qkv.to(type), heads_);
    const auto [dq, dk, dv] = fused_attention_backward(see_heads(grad_mixed.to(type), heads_), q, k, v,
                                                       see_heads(mixed.to(type), heads_), kept);
    return join_gradients(dq, dk, dv, qkv.options());
  }
  const at::Tensor dmixed = see_heads(grad_mixed, heads_);
  const auto [q, k, v] = split_heads(qkv, heads_);
  const at::Tensor& weights = kept[1];
  const at::Tensor& mask = kept[2];
  const at::Tensor dv =
      at::matmul((mask.defined() ? dropout_.apply(weights, mask) : weights).transpose(-2, -1), dmixed);
  at::Tensor dweights = at::matmul(dmixed, v.transpose(-2, -1));
  if (mask.defined()) dropout_.apply_(dweights, mask);
  at::Tensor dscores = at::_softmax_backward_data(dweights, weights, -1, weights.scalar_type());
  dscores.mul_(1 / std::sqrt(static_cast<double>(q.size(-1))));
  return join_gradients(at::matmul(dscores, k), at::matmul(dscores.transpose(-2, -1), q), dv, qkv.options());
}

}  // namespace stagecraft
