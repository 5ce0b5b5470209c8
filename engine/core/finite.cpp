#include "engine/core/finite.h"

#include "base/error.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>

#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace stagecraft {
namespace {

/// x - x is 0 for a finite x and NaN for any other, and a sum with NaN in it is NaN: two operations a vector,
/// and no branch.
template <class T>
bool all_finite(const T* values, std::int64_t count) {
  constexpr std::int64_t kLanes = 32;
  std::array<T, kLanes> lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const T value = values[i + static_cast<std::int64_t>(lane)];
      lanes[lane] += value - value;  // NOLINT(misc-redundant-expression)
    }
  }
  for (; i < count; ++i) lanes[0] += values[i] - values[i];  // NOLINT(misc-redundant-expression)
  return std::accumulate(lanes.begin(), lanes.end(), T{0}) == 0;
}

bool all_finite(const at::Tensor& tensor) {
  STAGECRAFT_CHECK(tensor.is_contiguous(), "a tensor that is contiguous");
  constexpr std::int64_t kGrain = 1 << 18;  // below that other threads are not worth waking
  std::atomic<bool> finite = true;
  AT_DISPATCH_FLOATING_TYPES(tensor.scalar_type(), "all_finite", [&] {
    const auto* values = tensor.const_data_ptr<scalar_t>();
    at::parallel_for(0, tensor.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      if (!all_finite(values + begin, end - begin)) finite = false;
    });
  });
  return finite;
}

/// A number a tensor, finite where the tensor is: its largest magnitude.
at::Tensor largest_magnitudes(const Tensors& tensors) {
  return at::stack(at::_foreach_norm(tensors, std::numeric_limits<double>::infinity())).to(at::kDouble);
}

std::optional<std::size_t> last_not_finite(const AsyncScalars& numbers, std::size_t count) {
  for (std::size_t i = count; i-- > 0;) {
    if (!std::isfinite(numbers[static_cast<std::int64_t>(i)])) return i;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::size_t> last_not_finite(const Tensors& tensors, const std::function<void()>& meanwhile) {
  if (tensors.empty()) return std::nullopt;
  if (!tensors.front().is_cpu()) {
    const AsyncScalars largest(largest_magnitudes(tensors));
    largest.await(meanwhile);
    return last_not_finite(largest, tensors.size());
  }
  for (std::size_t i = tensors.size(); i-- > 0;) {
    if (!all_finite(tensors[i])) return i;
  }
  return std::nullopt;
}

void DeferredFiniteChecks::add(const Tensors& tensors, Found found) {
  if (tensors.empty()) return;
  entries_.push_back({AsyncScalars(largest_magnitudes(tensors)), tensors.size(), std::move(found)});
  while (entries_.front().largest.arrived()) {
    look_at_oldest();
    if (entries_.empty()) return;
  }
}

void DeferredFiniteChecks::look_at_all() {
  while (!entries_.empty()) look_at_oldest();
}

void DeferredFiniteChecks::look_at_oldest() {
  const Entry oldest = std::move(entries_.front());
  entries_.pop_front();
  oldest.largest.await(meanwhile_);
  if (const auto position = last_not_finite(oldest.largest, oldest.count)) {
    oldest.found(*position, oldest.largest[static_cast<std::int64_t>(*position)]);
  }
}

}  // namespace stagecraft
