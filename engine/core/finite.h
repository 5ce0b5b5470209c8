#pragma once

// Whether tensors hold finite numbers only: neither NaN nor an infinity. Of gradients it is asked before
// every update that no agreement on the norm precedes, of a whole state before it is saved; so a tensor is
// read once, at the speed of memory, and nothing is allocated on the CPU.

#include "engine/core/loss_sum.h"
#include "models/layers/layer.h"

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

namespace stagecraft {

/// Position of the last tensor with a number that is not finite: of gradients in the model's order the first
/// one that backward made. float32 and float64, all on one device, which is waited for; `meanwhile` is called
/// while it is (Transport::progress). Does not depend on
/// the number of threads.
[[nodiscard]] std::optional<std::size_t> last_not_finite(const Tensors& tensors,
                                                         const std::function<void()>& meanwhile = nullptr);

/// The same question to a device that is not waited for.
class DeferredFiniteChecks {
 public:
  /// `largest`: of the tensor's magnitudes, NaN or infinity.
  using Found = std::function<void(std::size_t position, double largest)>;

  /// `meanwhile` is called while an answer is waited for (Transport::progress).
  explicit DeferredFiniteChecks(std::function<void()> meanwhile) : meanwhile_(std::move(meanwhile)) {}

  /// Calls `found` for the last tensor, if any, that is not finite: in a later add(), when the answer has
  /// arrived, or in look_at_all(). The tensors may change meanwhile.
  void add(const Tensors& tensors, Found found);
  /// Waits for all answers.
  void look_at_all();

 private:
  struct Entry {
    AsyncScalars largest;
    std::size_t count;
    Found found;
  };
  void look_at_oldest();
  std::function<void()> meanwhile_;
  std::deque<Entry> entries_;
};

}  // namespace stagecraft
