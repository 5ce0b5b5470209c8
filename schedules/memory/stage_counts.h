#pragma once

// How much of what a stage holds at once, read off a schedule program: what memory depends on before anything
// is lowered. The proof of the lowered program (checker.h) has the last word.

#include "schedules/program/program.h"

#include <vector>

namespace stagecraft {

/// Of a stage, on that of its replicas that holds most of each.
struct StageCounts {
  int in_flight = 1;  ///< most micro-batches with forward done and backward (its input part) not
  /// Of these, most with their activations kept: recomputed ones from the recompute on.
  int kept = 1;
  int unweighted = 0;  ///< most micro-batches with the backward's input part done and its weight part not
  int versions = 1;    ///< most versions of the weights alive, the current one included

  bool operator==(const StageCounts&) const = default;
};

/// One per stage; of a frozen stage, one in flight. Linear in the number of actions. `program` is a generator's: complete, in range.
[[nodiscard]] std::vector<StageCounts> stage_counts(const ScheduleProgram& program);

}  // namespace stagecraft
