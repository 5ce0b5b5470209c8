#pragma once

// Steps whose loss, and perhaps norm, is still on its way from the device. A step is reported when its numbers have arrived, in
// order, and at the latest when the next one is over: so nobody waits for a device that runs one step behind.

#include "engine/core/deferred_norms.h"
#include "engine/core/loss_sum.h"
#include "engine/core/worker.h"

#include <deque>
#include <functional>
#include <utility>

namespace stagecraft {

class DeferredReports {
 public:
  using Report = std::function<void(const StepReport&)>;

  /// `meanwhile` is called while a loss is waited for (Transport::progress).
  explicit DeferredReports(std::function<void()> meanwhile) : meanwhile_(std::move(meanwhile)) {}

  /// `step` lacks what is in `loss`: [loss, correct, terms...], on the device; and its norm, where that is late: it must be
  /// heard before the next add().
  void add(const StepReport& step, const at::Tensor& loss, const Report& report, LateNorm norm = nullptr);
  /// Waits for all of them, whose norms were heard.
  void deliver_all();

 private:
  struct Entry {
    StepReport step;
    AsyncScalars loss;
    Report report;
    LateNorm norm;
    [[nodiscard]] bool arrived() const { return loss.arrived() && (norm == nullptr || norm->has_value()); }
  };
  void deliver_oldest();
  std::function<void()> meanwhile_;
  std::deque<Entry> entries_;
};

}  // namespace stagecraft
