#include "engine/core/loss_sum.h"

#include "engine/core/await_device.h"
#include "models/tensors/device_mark.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

namespace stagecraft {

LossSum::LossSum(at::Device device) {
  if (device.is_cpu()) {
    numbers_ = std::make_unique<std::array<double, 2>>();
    sum_ = at::from_blob(numbers_->data(), {2}, at::kDouble);
  } else {
    sum_ = at::zeros({2}, at::TensorOptions(device).dtype(at::kDouble));
  }
}

// On the CPU numbers are added as numbers: an operator of LibTorch's takes as long as a small layer.
void LossSum::add(const LossValue& value) {
  const auto is_number = [](const at::Tensor& one) {
    return one.is_cpu() && one.scalar_type() == at::kDouble;
  };
  if (numbers_ != nullptr && is_number(value.loss) &&
      (!value.correct.defined() || is_number(value.correct))) {
    (*numbers_)[0] += *value.loss.const_data_ptr<double>();
    if (value.correct.defined()) (*numbers_)[1] += *value.correct.const_data_ptr<double>();
    return;
  }
  sum_.select(0, 0).add_(value.loss);
  if (value.correct.defined()) sum_.select(0, 1).add_(value.correct);
}

void LossSum::add(const at::Tensor& values) {
  if (numbers_ == nullptr || !values.is_contiguous()) {
    sum_.add_(values);
    return;
  }
  const double* const others = values.const_data_ptr<double>();
  (*numbers_)[0] += others[0];
  (*numbers_)[1] += others[1];
}

at::Tensor LossSum::values() const { return sum_.clone(); }

AsyncScalars::AsyncScalars(const at::Tensor& on_device) {
  const at::Device device = on_device.device();
  if (device.is_cpu()) {
    host_ = on_device;
    return;
  }
  // From pageable memory the copy would be waited for.
  host_ = at::empty(on_device.sizes(), at::TensorOptions(at::kDouble).pinned_memory(device.is_cuda()));
  host_.copy_(on_device, /*non_blocking=*/true);
  copied_ = mark_of(device);
}

bool AsyncScalars::arrived() const { return !copied_ || copied_->query(); }

void AsyncScalars::await(const std::function<void()>& meanwhile) const {
  if (copied_) await_device(*copied_, meanwhile);
}

double AsyncScalars::operator[](std::int64_t i) const { return host_.const_data_ptr<double>()[i]; }

}  // namespace stagecraft
