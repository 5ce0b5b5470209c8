#pragma once

// What the zero-bubble schedules of a straight pipeline share: they differ in how many micro-batches a rank
// may keep.

#include "stagecraft/schedules/generators/assembly.h"

namespace stagecraft {

/// Ordered by the request's costs; a replica of a stage of width w keeps, of P ranks, at most
/// `turns` * floor((P - 1) / w) + 1 micro-batches from their forward to their weight gradient.
[[nodiscard]] ScheduleProgram zb_straight(const char* schedule, const ScheduleRequest& request, int turns);

}  // namespace stagecraft
