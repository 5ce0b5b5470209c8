#include "models/captured/operators/device_attention.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/SDPBackend.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace stagecraft::captured {
namespace {

using at::Tensor;

constexpr double kClosed = -std::numeric_limits<double>::infinity();

const Tensor* mask_of(const Attention& its) { return its.mask && its.mask->defined() ? &*its.mask : nullptr; }

double scale_of(const Attention& its) {
  return its.scale.value_or(1 / std::sqrt(static_cast<double>(its.q.size(-1))));
}

bool grouped(const Attention& its) { return its.q.size(1) != its.k.size(1); }

/// The last dimension in whole blocks, filled up with `value`.
Tensor in_blocks(const Tensor& tensor, std::int64_t block, double value = 0) {
  const std::int64_t over = tensor.size(-1) % block;
  return over == 0 ? tensor : at::constant_pad_nd(tensor, {0, block - over}, value);
}

/// What kernels hand their backward differs in its last dimension alone.
Tensor log_sum_for(AttentionKernel kernel, const Attention& its, const Tensor& log_sum) {
  constexpr std::int64_t kQueries = 32;
  const std::int64_t queries = its.q.size(2);
  if (kernel == AttentionKernel::efficient && log_sum.size(-1) % kQueries == 0) return log_sum;
  const Tensor exact = log_sum.narrow(-1, 0, queries);
  if (kernel != AttentionKernel::efficient) return exact.contiguous();
  return in_blocks(exact, kQueries, std::numeric_limits<double>::infinity());
}

/// Graphs see memory as the CPU's kernel leaves it, since a view of it may be the next step: what is mixed lies as
/// the queries do, gradients token by token.
Tensor laid_out(const Tensor& tensor, at::IntArrayRef strides) {
  if (tensor.strides() == strides) return tensor;
  return at::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(tensor);
}

Tensor as_queries(const Tensor& mixed, const Tensor& q) {
  return laid_out(mixed, q.is_non_overlapping_and_dense() ? q.strides().vec()
                                                          : at::infer_dense_strides(q.sizes(), q.strides()));
}

Tensor by_token(const Tensor& gradient) {
  const std::int64_t heads = gradient.size(1), tokens = gradient.size(2), size = gradient.size(3);
  return laid_out(gradient, {tokens * heads * size, size, heads * size, 1});
}

// Flash.

constexpr std::int64_t kFlashBlock = 8;  // numbers of a head

std::tuple<Tensor, Tensor> flash(const Attention& its) {
  auto [mixed, log_sum, of_q, of_k, most_q, most_k, seed, offset, debug] =
      at::_scaled_dot_product_flash_attention(in_blocks(its.q, kFlashBlock), in_blocks(its.k, kFlashBlock),
                                              in_blocks(its.v, kFlashBlock), /*dropout_p=*/0, its.causal,
                                              /*return_debug_mask=*/false, scale_of(its));
  return {mixed.narrow(-1, 0, its.v.size(-1)), std::move(log_sum)};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Attention& its, const Tensor& grad_mixed,
                                                  const Tensor& mixed, const Tensor& log_sum) {
  // Of dropout's generator: not read.
  const Tensor seed = at::empty({2}, its.q.options().dtype(at::kUInt64));
  const Tensor offset = at::empty({}, its.q.options().dtype(at::kUInt64));
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
      in_blocks(grad_mixed, kFlashBlock), in_blocks(its.q, kFlashBlock), in_blocks(its.k, kFlashBlock),
      in_blocks(its.v, kFlashBlock), in_blocks(mixed, kFlashBlock), log_sum, /*cum_seq_q=*/{},
      /*cum_seq_k=*/{}, its.q.size(2), its.k.size(2), /*dropout_p=*/0, its.causal, seed, offset,
      scale_of(its));
  return {dq.narrow(-1, 0, its.q.size(-1)), dk.narrow(-1, 0, its.k.size(-1)),
          dv.narrow(-1, 0, its.v.size(-1))};
}

// Memory-efficient attention.

/// As the kernel reads a mask: of every head, rows aligned. Padded before it is repeated.
std::optional<Tensor> bias_of(const Attention& its) {
  constexpr std::int64_t kRow = 16;
  const Tensor* const mask = mask_of(its);
  if (mask == nullptr) return std::nullopt;
  const std::int64_t keys = its.k.size(2);
  Tensor bias = *mask;
  if (bias.size(-1) != keys) {
    std::vector<std::int64_t> sizes = bias.sizes().vec();
    sizes.back() = keys;
    bias = bias.expand(sizes);
  }
  if (keys % kRow != 0) bias = in_blocks(bias, kRow).narrow(-1, 0, keys);
  return bias.expand({its.q.size(0), its.q.size(1), its.q.size(2), keys});
}

std::tuple<Tensor, Tensor> efficient(const Attention& its) {
  auto [mixed, log_sum, seed, offset] = at::_scaled_dot_product_efficient_attention(
      its.q, its.k, its.v, bias_of(its), /*compute_log_sumexp=*/true, /*dropout_p=*/0, its.causal, its.scale);
  return {std::move(mixed), std::move(log_sum)};
}

std::tuple<Tensor, Tensor, Tensor> efficient_backward(const Attention& its, const Tensor& grad_mixed,
                                                      const Tensor& mixed, const Tensor& log_sum) {
  const Tensor unused = at::empty({}, its.q.options().dtype(at::kLong));  // of dropout's generator
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      grad_mixed, its.q, its.k, its.v, bias_of(its).value_or(Tensor()), mixed, log_sum, unused, unused,
      /*dropout_p=*/0, {true, true, true, false}, its.causal, its.scale);
  return {std::move(dq), std::move(dk), std::move(dv)};
}

// Plain.

/// Heads of keys or values, one for each of the queries'.
Tensor of_each_query(const Tensor& heads, const Attention& its, at::ScalarType type) {
  if (!grouped(its)) return heads.to(type);
  const std::int64_t group = its.q.size(1) / heads.size(1);
  return heads.to(type)
      .unsqueeze(2)
      .expand({heads.size(0), heads.size(1), group, heads.size(2), heads.size(3)})
      .reshape({heads.size(0), its.q.size(1), heads.size(2), heads.size(3)});
}

/// Gradients of such, added up.
Tensor of_each_head(const Tensor& gradient, const Tensor& heads) {
  if (gradient.size(1) == heads.size(1)) return gradient.to(heads.scalar_type());
  return gradient.view({heads.size(0), heads.size(1), -1, heads.size(2), heads.size(3)})
      .sum(2)
      .to(heads.scalar_type());
}

Tensor scores(const Attention& its, at::ScalarType type) {
  Tensor made =
      at::matmul(its.q.to(type), of_each_query(its.k, its, type).transpose(-2, -1)).mul_(scale_of(its));
  if (const Tensor* const mask = mask_of(its)) {
    made =
        mask->scalar_type() == at::kBool ? made.masked_fill_(mask->logical_not(), kClosed) : made.add_(*mask);
  }
  if (its.causal) {
    const Tensor later =
        at::ones({its.q.size(2), its.k.size(2)}, its.q.options().dtype(at::kBool)).triu_(/*diagonal=*/1);
    made.masked_fill_(later, kClosed);
  }
  return made;
}

std::tuple<Tensor, Tensor> plain(const Attention& its) {
  const at::ScalarType type = at::toOpMathType(its.q.scalar_type());
  const Tensor made = scores(its, type);
  const Tensor log_sum = at::logsumexp(made, -1);
  const Tensor probabilities = at::_safe_softmax(made, -1);  // zeros where all is closed
  return {at::matmul(probabilities, of_each_query(its.v, its, type)).to(its.q.scalar_type()), log_sum};
}

std::tuple<Tensor, Tensor, Tensor> plain_backward(const Attention& its, const Tensor& grad_mixed,
                                                  const Tensor& mixed, const Tensor& log_sum) {
  const at::ScalarType type = at::toOpMathType(its.q.scalar_type());
  const Tensor made = scores(its, type);
  const Tensor closed = made == kClosed;
  const Tensor probabilities = made.sub_(log_sum.unsqueeze(-1)).exp_().masked_fill_(closed, 0);
  const Tensor grad = grad_mixed.to(type);
  const Tensor dv = at::matmul(probabilities.transpose(-2, -1), grad);
  const Tensor row = (grad * mixed.to(type)).sum(-1, /*keepdim=*/true);
  const Tensor d_scores = at::matmul(grad, of_each_query(its.v, its, type).transpose(-2, -1))
                              .sub_(row)
                              .mul_(probabilities)
                              .mul_(scale_of(its));
  const Tensor dq = at::matmul(d_scores, of_each_query(its.k, its, type));
  const Tensor dk = at::matmul(d_scores.transpose(-2, -1), its.q.to(type));
  return {dq.to(its.q.scalar_type()), of_each_head(dk, its.k), of_each_head(dv, its.v)};
}

}  // namespace

AttentionKernel attention_kernel(const Attention& its) {
  constexpr std::int64_t kMostOfFlash = 192;
  const Tensor* const mask = mask_of(its);
  if (mask != nullptr && mask->scalar_type() != its.q.scalar_type()) return AttentionKernel::plain;
  const auto choice = static_cast<at::SDPBackend>(at::_fused_sdp_choice(
      its.q, its.k, its.v, its.mask, /*dropout_p=*/0, its.causal, its.scale, grouped(its)));
  if (choice == at::SDPBackend::efficient_attention) return AttentionKernel::efficient;
  if (choice != at::SDPBackend::flash_attention) return AttentionKernel::plain;
  if (its.q.size(-1) <= kMostOfFlash) return AttentionKernel::flash;
  const bool fits = its.q.size(-1) % kFlashBlock == 0 && !grouped(its);
  return fits ? AttentionKernel::efficient : AttentionKernel::plain;
}

std::tuple<Tensor, Tensor> attend(AttentionKernel kernel, const Attention& attention) {
  const auto [mixed, log_sum] = kernel == AttentionKernel::flash       ? flash(attention)
                                : kernel == AttentionKernel::efficient ? efficient(attention)
                                                                       : plain(attention);
  // Some kernels leave log-sums of whole blocks of queries. Graphs have those of the queries.
  return {as_queries(mixed, attention.q), log_sum.narrow(-1, 0, attention.q.size(2))};
}

std::tuple<Tensor, Tensor, Tensor> attend_backward(AttentionKernel kernel, const Attention& attention,
                                                   const Tensor& grad_mixed, const Tensor& mixed,
                                                   const Tensor& log_sum) {
  const Tensor its = log_sum_for(kernel, attention, log_sum);
  const auto [dq, dk, dv] =
      kernel == AttentionKernel::flash       ? flash_backward(attention, grad_mixed, mixed, its)
      : kernel == AttentionKernel::efficient ? efficient_backward(attention, grad_mixed, mixed, its)
                                             : plain_backward(attention, grad_mixed, mixed, its);
  return {by_token(dq), by_token(dk), by_token(dv)};
}

}  // namespace stagecraft::captured
