#include "engine/core/clipping.h"

#include "base/error.h"
#include "engine/core/loss_sum.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

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

/// Adds the second half to the first, which is one longer where the number is odd, until one is left.
double sum_in_halves(std::vector<double> numbers) {
  while (numbers.size() > 1) {
    const std::size_t first = (numbers.size() + 1) / 2;
    for (std::size_t i = first; i < numbers.size(); ++i) numbers[i - first] += numbers[i];
    numbers.resize(first);
  }
  return numbers.empty() ? 0 : numbers.front();
}

}  // namespace

std::vector<double> sums_of_squares(const std::vector<at::Tensor>& gradients,
                                    const std::function<void()>& meanwhile) {
  std::vector<double> sums;
  const bool on_device = std::any_of(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) {
    return gradient.defined() && !gradient.is_cpu();
  });
  if (!on_device) {
    for (const at::Tensor& gradient : gradients) {
      sums.push_back(gradient.defined() ? sum_of_squares(gradient) : 0);
    }
    return sums;
  }
  const AsyncScalars all(squares_on_device(gradients));
  all.await(meanwhile);
  for (std::size_t i = 0; i < gradients.size(); ++i) sums.push_back(all[static_cast<std::int64_t>(i)]);
  return sums;
}

at::Tensor squares_on_device(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> defined;
  std::copy_if(gradients.begin(), gradients.end(), std::back_inserter(defined),
               [](const at::Tensor& gradient) { return gradient.defined(); });
  STAGECRAFT_CHECK(!defined.empty(), "a device has some gradient");
  std::vector<at::Tensor> norms = at::_foreach_norm(defined, 2, at::kDouble);
  if (defined.size() < gradients.size()) {
    const at::Tensor none = at::zeros({}, norms.front().options());
    std::vector<at::Tensor> all;
    for (auto next = norms.begin(); const at::Tensor& gradient : gradients) {
      all.push_back(gradient.defined() ? *next++ : none);
    }
    norms = std::move(all);
  }
  return at::stack(norms).square_();
}

double norm_of(const std::vector<double>& squares, at::Device device) {
  return std::sqrt(device.is_cpu() ? std::accumulate(squares.begin(), squares.end(), 0.0)
                                   : sum_in_halves(squares));
}

at::Tensor norm_of(const at::Tensor& squares) {
  at::Tensor sums = squares.clone();
  for (std::int64_t left = sums.numel(); left > 1;) {
    const std::int64_t first = (left + 1) / 2;
    sums.narrow(0, 0, left - first).add_(sums.narrow(0, first, left - first));
    left = first;
  }
  return sums.select(0, 0).sqrt();
}

double clip_factor(double norm, double max_norm) { return std::min(1.0, max_norm / (norm + 1e-6)); }

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  // A number of the host's would be divided by way of the norm's inverse.
  return at::full({}, max_norm, norm.options()).div_(norm.add(1e-6)).clamp_max_(1.0);
}

void multiply(const std::vector<at::Tensor>& gradients, double factor) {
  if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
}

void multiply(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) {
  if (!gradients.empty()) at::_foreach_mul_(gradients, factor.to(gradients.front().scalar_type()));
}

}  // namespace stagecraft
