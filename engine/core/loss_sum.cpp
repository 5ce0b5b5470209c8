#include "engine/core/loss_sum.h"

#include "engine/core/await_device.h"
#include "models/tensors/device_mark.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

namespace stagecraft {

LossSum::LossSum(std::size_t numbers, at::Device device) {
  const auto count = static_cast<std::int64_t>(numbers);
  if (device.is_cpu()) {
    numbers_.resize(numbers);
    sum_ = at::from_blob(numbers_.data(), {count}, at::kDouble);
  } else {
    sum_ = at::zeros({count}, at::TensorOptions(device).dtype(at::kDouble));
  }
}

// On the CPU numbers are added as numbers: an operator of LibTorch's takes as long as a small layer.
void LossSum::add(const LossValue& value) {
  const auto are_numbers = [](const at::Tensor& some) {
    return !some.defined() || (some.is_cpu() && some.scalar_type() == at::kDouble && some.is_contiguous());
  };
  if (!numbers_.empty() && are_numbers(value.loss) && are_numbers(value.correct) &&
      are_numbers(value.terms)) {
    numbers_[0] += *value.loss.const_data_ptr<double>();
    if (value.correct.defined()) numbers_[1] += *value.correct.const_data_ptr<double>();
    if (!value.terms.defined()) return;
    const double* const terms = value.terms.const_data_ptr<double>();
    for (std::size_t i = 2; i < numbers_.size(); ++i) numbers_[i] += terms[i - 2];
    return;
  }
  sum_.select(0, 0).add_(value.loss);
  if (value.correct.defined()) sum_.select(0, 1).add_(value.correct);
  if (value.terms.defined()) sum_.narrow(0, 2, sum_.size(0) - 2).add_(value.terms);
}

void LossSum::add(const at::Tensor& values) {
  if (numbers_.empty() || !values.is_contiguous()) {
    sum_.add_(values);
    return;
  }
  const double* const others = values.const_data_ptr<double>();
  for (std::size_t i = 0; i < numbers_.size(); ++i) numbers_[i] += others[i];
}

at::Tensor LossSum::values() const { return sum_.clone(); }

AsyncScalars::AsyncScalars(const at::Tensor& on_device) {
  const at::Device device = on_device.device();
  if (device.is_cpu()) {
    host_ = on_device.to(at::kDouble);
    return;
  }
  // From pageable memory the copy would be waited for.
  host_ = at::empty(on_device.sizes(), at::TensorOptions(at::kDouble).pinned_memory(device.is_cuda()));
  host_.copy_(on_device.to(at::kDouble), /*non_blocking=*/true);
  copied_ = mark_of(device);
}

bool AsyncScalars::arrived() const { return !copied_ || copied_->query(); }

void AsyncScalars::await(const std::function<void()>& meanwhile) const {
  if (copied_) await_device(*copied_, meanwhile);
}

double AsyncScalars::operator[](std::int64_t i) const { return host_.const_data_ptr<double>()[i]; }

}  // namespace stagecraft
