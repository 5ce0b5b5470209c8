#include "stagecraft/engine/clipping.h"

#include "stagecraft/base/error.h"
#include "stagecraft/engine/loss_sum.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace stagecraft {

namespace {

// LibTorch's norm kernel makes a double copy of what it is given, twice a gradient's own memory. Here lanes
// are what the compiler makes vectors of, and the order of additions is one for all numbers of threads.
double sum_of_squares(const at::Tensor& gradient) {
  STAGECRAFT_CHECK(gradient.is_contiguous() && gradient.is_cpu(), "a gradient as an accumulator holds it");
  std::array<double, 16> lanes{};
  AT_DISPATCH_FLOATING_TYPES(gradient.scalar_type(), "sum_of_squares", [&] {
    const auto* values = gradient.const_data_ptr<scalar_t>();
    const std::int64_t count = gradient.numel();
    std::int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
      for (std::size_t lane = 0; lane < 16; ++lane) {
        const double value = values[i + static_cast<std::int64_t>(lane)];
        lanes[lane] += value * value;
      }
    }
    for (; i < count; ++i) lanes[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  });
  return std::accumulate(lanes.begin(), lanes.end(), 0.0);
}

}  // namespace

std::vector<double> sums_of_squares(const std::vector<at::Tensor>& gradients,
                                    const std::function<void()>& meanwhile) {
  std::vector<double> sums;
  if (gradients.empty()) return sums;
  if (gradients.front().is_cpu()) {
    for (const at::Tensor& gradient : gradients) sums.push_back(sum_of_squares(gradient));
    return sums;
  }
  std::vector<at::Tensor> on_device;  // whose norm kernels convert as they read
  for (const at::Tensor& gradient : gradients) {
    on_device.push_back(at::linalg_vector_norm(gradient, 2, {}, /*keepdim=*/false, at::kDouble).square());
  }
  const AsyncScalars all(at::stack(on_device));
  all.await(meanwhile);
  for (std::size_t i = 0; i < gradients.size(); ++i) sums.push_back(all[static_cast<std::int64_t>(i)]);
  return sums;
}

double clip_factor(double norm, double max_norm) { return std::min(1.0, max_norm / (norm + 1e-6)); }

}  // namespace stagecraft
