#pragma once

// Staleness, as a number that follows from a program: how many updates lie between the weights that a
// micro-batch reads and the weights that its gradient is applied to. The checker proves its range, and the
// engine gives it to the optimizer, so that nobody assumes a formula of a schedule.

#include "schedules/program/program.h"

#include <vector>

namespace stagecraft {

/// Of one micro-batch on the stage of its forward. Its update reads the version of its group's number.
[[nodiscard]] constexpr int staleness_of(const Action& forward, Group group) {
  return group.value - forward.version.value;
}

/// Of one update of a stage, in updates: means over micro-batches, of all replicas.
struct UpdateStaleness {
  double gradients = 0;  ///< of the micro-batches whose gradients the update sums
  double weights =
      0;  ///< of those that read the version it writes; 0 where no micro-batch of the segment does
  bool operator==(const UpdateStaleness&) const = default;
};

/// Of every group of a training program.
[[nodiscard]] std::vector<UpdateStaleness> staleness_of_updates(const LoweredProgram& program, StageId stage);

}  // namespace stagecraft
