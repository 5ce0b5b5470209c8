#pragma once

// What a device's ranks rehearse before a run's first step (Worker::rehearse): its segments in small, with enough
// micro-batches that everything that the schedule does in a steady step occurs.

#include "engine/core/worker.h"
#include "engine/run/resolve/programs.h"
#include "engine/run/resolve/setup.h"

#include <vector>

namespace stagecraft {

/// A run of a step (where steps are synchronous, and one more where an epoch's last is short) or of as many as keep
/// all stages busy, and a validation behind it, where the run has any. `in_flight`: the most micro-batches that a stage
/// holds. Samples are those that the run begins with.
[[nodiscard]] RunShape rehearsal_shape(const RunShape& run, int ranks, int in_flight);

class Rehearsal {
 public:
  /// By `rank`.
  Rehearsal(const RunSetup& setup, Rank rank);
  [[nodiscard]] std::vector<Worker::Rehearsed> segments() const;

 private:
  Rank rank_;
  RunShape shape_;
  RunPrograms programs_;
};

}  // namespace stagecraft
