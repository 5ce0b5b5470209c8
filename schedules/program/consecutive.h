#pragma once

// Synchronous steps one behind the other, as ranks carry them out that do not wait for each other in between: a rank
// that has ended its list of one step goes on with that of the next. The result is a program like any other, whose
// k-th group is the k-th step, so it is proved, priced and drawn like any other.

#include "schedules/program/program.h"

#include <vector>

namespace stagecraft {

/// Whether one step may be followed so: replicas take micro-batches in turn, each step from the first replica on, so a
/// step's must divide among them. Elsewhere ranks wait for each other behind each step.
[[nodiscard]] bool can_be_followed(const Placement& placement, int micro_batches);
[[nodiscard]] inline bool can_be_followed(const ProgramHeader& step) {
  return can_be_followed(step.placement, step.micro_batches());
}

/// At least one; of the same model, placement and kind, all but the last such as can be followed. Slots of one kind
/// are the same in all steps: a rank has as many as the step that needs most.
[[nodiscard]] LoweredProgram consecutive(const std::vector<const LoweredProgram*>& steps);

/// `step` so many times. Throws InputError where it cannot be followed, or that has more than kMaxActions actions.
[[nodiscard]] LoweredProgram repeated(const LoweredProgram& step, int times);

}  // namespace stagecraft
