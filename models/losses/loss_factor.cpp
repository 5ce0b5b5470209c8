#include "models/losses/loss_factor.h"

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

namespace stagecraft {
namespace {

/// Products of narrow numbers with one of the host's are rounded once; with one in memory that would be narrow
/// too, they would be rounded twice.
bool narrow(const at::Tensor& values) { return at::isReducedFloatingType(values.scalar_type()); }

}  // namespace

LossFactor Loss::factor(const LossFactor& share, std::int64_t terms) const {
  return reduction_ == Reduction::mean ? share / terms : share;
}

LossFactor LossFactor::operator-() const {
  return in_memory_.defined() ? LossFactor(in_memory_.neg()) : LossFactor(-number_);
}

LossFactor LossFactor::operator*(const LossFactor& other) const {
  if (!in_memory_.defined() && !other.in_memory_.defined()) return LossFactor(number_ * other.number_);
  if (!in_memory_.defined()) return other * *this;
  return LossFactor(other.in_memory_.defined() ? in_memory_.mul(other.in_memory_)
                                               : in_memory_.mul(other.number_));
}

LossFactor LossFactor::operator/(std::int64_t terms) const {
  const auto divisor = static_cast<double>(terms);
  if (!in_memory_.defined()) return LossFactor(number_ / divisor);
  // CUDA would multiply by the inverse of a number of the host's.
  return LossFactor(in_memory_.div(at::full({}, divisor, in_memory_.options())));
}

at::Tensor LossFactor::times(const at::Tensor& values) const {
  if (!in_memory_.defined()) return values.mul(number_);
  if (narrow(values)) return values.to(at::kFloat).mul_(in_memory_).to(values.scalar_type());
  return values.mul(in_memory_);
}

void LossFactor::multiply(at::Tensor& values) const {
  if (!in_memory_.defined()) {
    values.mul_(number_);
  } else if (narrow(values)) {
    values.copy_(times(values));
  } else {
    values.mul_(in_memory_);
  }
}

at::Tensor LossFactor::as(const at::TensorOptions& options) const {
  return in_memory_.defined() ? in_memory_.to(options) : at::full({}, number_, options);
}

LossFactor share_in(const at::Tensor& weights, double share) {
  return weights.defined() ? LossFactor(weights.select(0, 0)) : LossFactor(share);
}

at::Tensor keep_weights(const at::Tensor& weights, double share) {
  return weights.defined() ? weights : at::scalar_tensor(share, at::kDouble);
}

LossFactor kept_share(const at::Tensor& kept) {
  return kept.dim() == 1 ? LossFactor(kept.select(0, 0)) : LossFactor(kept.item<double>());
}

LossFactor kept_scale(const at::Tensor& kept, double scale) {
  return kept.dim() == 1 ? LossFactor(kept.select(0, 1)) : LossFactor(scale);
}

}  // namespace stagecraft
