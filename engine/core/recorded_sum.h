#pragma once

// A sum over replicas that tells the timeline when something of it was under way: from the first piece that
// leaves while none is, until none is again. So one sees which of it the backward hid. The host tells where it
// moves the pieces and its clock is the recorder's; a device tells behind the sum's end.

#include "engine/core/recorder.h"
#include "engine/transport/replica_sum.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace stagecraft {

class RecordedSum final : public ReplicaSum {
 public:
  /// `recorder` outlives this, and is on. `action`: the reduce or tie at the sum's end.
  RecordedSum(std::unique_ptr<ReplicaSum> sum, Recorder& recorder, const Action& action, std::int64_t step);

  void add(const at::Tensor& tensor) override;
  void add(const std::vector<at::Tensor>& own) override;
  void flush() override;
  void poll() override;
  void finish() override;
  [[nodiscard]] Progress progress() const override { return sum_->progress(); }

 private:
  /// Calls what may move it, and looks whether it did.
  template <class Call>
  void watch(const Call& call);

  std::unique_ptr<ReplicaSum> sum_;
  Recorder& recorder_;
  Action action_;
  std::int64_t step_;
  std::optional<Seconds> since_;  ///< under way since then
  Bytes recorded_{};
};

}  // namespace stagecraft
