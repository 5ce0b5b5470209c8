#pragma once

// What a loss and its gradient are multiplied by: a number of the host's, or one in a device's memory, which
// a recording of the device reads anew every time. Both round alike: factors in double precision, products in
// the type of the values.

#include "models/losses/loss.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace stagecraft {

class LossFactor {
 public:
  explicit LossFactor(double number) : number_(number) {}
  /// Double precision, no dimensions.
  explicit LossFactor(at::Tensor in_memory) : in_memory_(std::move(in_memory)) {}

  [[nodiscard]] LossFactor operator-() const;
  [[nodiscard]] LossFactor operator*(const LossFactor& other) const;
  [[nodiscard]] LossFactor operator/(std::int64_t terms) const;

  [[nodiscard]] at::Tensor times(const at::Tensor& values) const;
  void multiply(at::Tensor& values) const;
  /// A tensor without dimensions.
  [[nodiscard]] at::Tensor as(const at::TensorOptions& options) const;

 private:
  double number_ = 1;
  at::Tensor in_memory_{};  ///< undefined: the number
};

/// The micro-batch's share, by the number where LossData has no `weights`.
[[nodiscard]] LossFactor share_in(const at::Tensor& weights, double share);

/// For Kept: the weights, or on the CPU the share alone.
[[nodiscard]] at::Tensor keep_weights(const at::Tensor& weights, double share);
[[nodiscard]] LossFactor kept_share(const at::Tensor& kept);
/// By the number where the share alone was kept.
[[nodiscard]] LossFactor kept_scale(const at::Tensor& kept, double scale);

}  // namespace stagecraft
