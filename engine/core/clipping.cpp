#include "engine/core/clipping.h"

#include "base/error.h"
#include "engine/core/loss_sum.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace stagecraft {
std::vector<double> norms_of(const std::vector<at::Tensor>& gradients,
                             const std::function<void()>& meanwhile) {
  std::vector<double> norms;
  const bool on_device = std::any_of(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) {
    return gradient.defined() && !gradient.is_cpu();
  });
  if (!on_device) {
    for (const at::Tensor& gradient : gradients) {
      norms.push_back(gradient.defined() ? at::linalg_vector_norm(gradient, 2).item<double>() : 0);
    }
    return norms;
  }
  const AsyncScalars all(norms_on_device(gradients));
  all.await(meanwhile);
  for (std::size_t i = 0; i < gradients.size(); ++i) norms.push_back(all[static_cast<std::int64_t>(i)]);
  return norms;
}

at::Tensor norms_on_device(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> defined;
  std::copy_if(gradients.begin(), gradients.end(), std::back_inserter(defined),
               [](const at::Tensor& gradient) { return gradient.defined(); });
  STAGECRAFT_CHECK(!defined.empty(), "a device has some gradient");
  std::vector<at::Tensor> norms = at::_foreach_norm(defined, 2);
  if (defined.size() < gradients.size()) {
    const at::Tensor none = at::zeros({}, norms.front().options());
    std::vector<at::Tensor> all;
    for (auto next = norms.begin(); const at::Tensor& gradient : gradients) {
      all.push_back(gradient.defined() ? *next++ : none);
    }
    norms = std::move(all);
  }
  return at::stack(norms);
}

at::Tensor norm_of(const at::Tensor& norms, const at::Tensor& order) {
  return at::linalg_vector_norm(order.defined() ? norms.index_select(0, order) : norms, 2);
}

double norm_of(const std::vector<double>& norms, const std::vector<std::int64_t>& order,
               const at::TensorOptions& kind) {
  // From pageable memory the copy would be waited for.
  const at::Tensor ordered = at::empty({static_cast<std::int64_t>(order.size())},
                                       kind.device(at::kCPU).pinned_memory(kind.device().is_cuda()));
  AT_DISPATCH_FLOATING_TYPES(ordered.scalar_type(), "norm_of", [&] {
    auto* next = ordered.mutable_data_ptr<scalar_t>();
    for (const std::int64_t place : order)
      *next++ = static_cast<scalar_t>(norms[static_cast<std::size_t>(place)]);
  });
  return at::linalg_vector_norm(ordered.to(kind, /*non_blocking=*/true), 2).item<double>();
}

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  return norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
}

double clip_factor(double norm, double max_norm, at::ScalarType type) {
  return clip_factor(at::scalar_tensor(norm, type), max_norm).item<double>();
}

void multiply(const std::vector<at::Tensor>& gradients, double factor) {
  if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
}

void multiply(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) {
  if (!gradients.empty()) at::_foreach_mul_(gradients, factor.to(gradients.front().scalar_type()));
}

}  // namespace stagecraft
