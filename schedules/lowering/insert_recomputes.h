#pragma once

// The pass that adds recomputation to any program (recompute.h says what it is).

#include "stagecraft/schedules/program/program.h"
#include "stagecraft/schedules/program/recompute.h"

namespace stagecraft {

/// Adds the recomputes that `settings` ask for; where one stands already it is left. `program` is a
/// generator's: complete, in range. Throws InputError for a validation program, which keeps nothing, and for
/// settings that do not match its stages.
void insert_recomputes(ScheduleProgram& program, const RecomputeSettings& settings);

}  // namespace stagecraft
