#pragma once

// How long a rank's list reads each version of a stage's weights: what decides whether a step may write over
// the version that it starts from.

#include "schedules/program/action.h"

#include <cstddef>
#include <vector>

namespace stagecraft {

struct VersionReads {
  bool steps = false;              ///< the list steps the stage
  std::vector<std::size_t> end{};  ///< by version: one past its last reader's position; 0: no reader
};

/// Of `stage` in the rank's `list`.
[[nodiscard]] inline VersionReads version_reads(const std::vector<Action>& list, StageId stage) {
  VersionReads reads;
  for (std::size_t at = 0; at < list.size(); ++at) {
    const Action& action = list[at];
    if (action.stage != stage) continue;
    reads.steps = reads.steps || action.op == Op::step;
    if (!is_compute(action.op) || !action.version.valid()) continue;
    if (reads.end.size() <= action.version.index()) reads.end.resize(action.version.index() + 1, 0);
    reads.end[action.version.index()] = at + 1;
  }
  return reads;
}

}  // namespace stagecraft
