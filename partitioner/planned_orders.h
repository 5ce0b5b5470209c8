#pragma once

// A plan's own program: read from the lines it carries, checked.

#include "stagecraft/partitioner/plan.h"

namespace stagecraft {

/// The program of one step that the plan carries, in order of its lines. Throws InputError with `file` and
/// the pointer for what cannot be read.
[[nodiscard]] ScheduleProgram carried_program(const Plan& plan, const std::string& file);

/// Throws InputError unless the carried program is for the plan's step and the checker accepts it.
void validate_carried(const Plan& plan, const std::string& file);

}  // namespace stagecraft
