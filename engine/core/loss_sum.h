#pragma once

// The loss, the right predictions and the loss's terms of a group's micro-batches, added up on the device that makes
// them, and read on the host when the device has got there, not before.

#include "models/losses/loss.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

namespace stagecraft {

class LossSum {
 public:
  /// `numbers`: of loss_numbers() (models/losses/loss.h).
  LossSum(std::size_t numbers, at::Device device);

  void add(const LossValue& value);
  /// The sum of another replica: what values() was there.
  void add(const at::Tensor& values);
  /// All become NaN: there is nothing that a mean could be of. A loss alone that is NaN leaves right predictions a
  /// number.
  void spoil() { sum_.fill_(std::numeric_limits<double>::quiet_NaN()); }
  /// [loss, correct, terms...] in double precision, on the device. No later add() changes it.
  [[nodiscard]] at::Tensor values() const;

 private:
  /// On the CPU the numbers lie here: they belong to a report, not to the model's memory.
  std::vector<double> numbers_;
  at::Tensor sum_;
};

/// Numbers on their way from a device: the copy is behind what was computed before, and nobody waits for it
/// but who needs them before that.
class AsyncScalars {
 public:
  explicit AsyncScalars(const at::Tensor& on_device);

  [[nodiscard]] bool arrived() const;
  /// Polls until they have arrived and calls `meanwhile`, again and again: a device may wait for another
  /// rank, and whoever waits for the device must hear what became of that one (Transport::progress).
  void await(const std::function<void()>& meanwhile) const;
  /// Double precision. They have arrived.
  [[nodiscard]] double operator[](std::int64_t i) const;
  [[nodiscard]] std::int64_t size() const { return host_.numel(); }

 private:
  at::Tensor host_;
  std::optional<c10::Event> copied_;  ///< none: they are there
};

}  // namespace stagecraft
