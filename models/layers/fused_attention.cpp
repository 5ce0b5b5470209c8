#include "models/layers/fused_attention.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

namespace stagecraft {
namespace {

enum class Kernel : std::uint8_t { cpu_flash, gpu_flash, gpu_efficient, none };

Kernel kernel_for(const at::Tensor& q) {
  if (!q.is_cuda()) return Kernel::cpu_flash;
  const bool aligned = q.size(-1) % 8 == 0 && q.size(-1) <= 256;
  if (!aligned || q.scalar_type() == at::kDouble) return Kernel::none;
  return q.scalar_type() == at::kFloat ? Kernel::gpu_efficient : Kernel::gpu_flash;
}

}  // namespace

bool has_fused_attention(const at::Tensor& q) { return kernel_for(q) != Kernel::none; }

std::pair<at::Tensor, Tensors> fused_attention(const at::Tensor& q, const at::Tensor& k,
                                               const at::Tensor& v) {
  switch (kernel_for(q)) {
    case Kernel::gpu_flash: {
      auto [mixed, log_sum, of_q, of_k, max_q, max_k, seed, offset, debug] =
          at::_scaled_dot_product_flash_attention(q, k, v, 0, true);
      return {std::move(mixed), Tensors{std::move(log_sum), std::move(seed), std::move(offset)}};
    }
    case Kernel::gpu_efficient: {
      auto [mixed, log_sum, seed, offset] =
          at::_scaled_dot_product_efficient_attention(q, k, v, {}, /*compute_log_sumexp=*/true, 0, true);
      return {std::move(mixed), Tensors{std::move(log_sum), std::move(seed), std::move(offset)}};
    }
    default: {
      auto [mixed, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, true);
      return {std::move(mixed), Tensors{std::move(log_sum)}};
    }
  }
}

at::ScalarType fused_backward_type(const at::Tensor& qkv) {
  return qkv.is_cuda() ? qkv.scalar_type() : at::toOpMathType(qkv.scalar_type());
}

std::array<at::Tensor, 3> fused_attention_backward(const at::Tensor& grad_mixed, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const at::Tensor& mixed, const Tensors& kept) {
  switch (kernel_for(q)) {
    case Kernel::gpu_flash: {
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
          grad_mixed, q, k, v, mixed, kept.at(0), {}, {}, q.size(2), k.size(2), 0, true, kept.at(1),
          kept.at(2));
      return {std::move(dq), std::move(dk), std::move(dv)};
    }
    case Kernel::gpu_efficient: {
      auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
          grad_mixed, q, k, v, {}, mixed, kept.at(0), kept.at(1), kept.at(2), 0, {true, true, true, false},
          true);
      return {std::move(dq), std::move(dk), std::move(dv)};
    }
    default: {
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(grad_mixed, q, k, v, mixed,
                                                                                   kept.at(0), 0, true);
      return {std::move(dq), std::move(dk), std::move(dv)};
    }
  }
}

}  // namespace stagecraft
