#pragma once

// What the V schedules share (Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362,
// section 3): orders from a pattern that repeats every so often, in which a micro-batch's parts and the next
// one's fit in between each other. What a rank keeps follows from how long a micro-batch stays. The paper
// draws patterns for equal times; here they are found for the true ones, by modulo scheduling (Rau,
// "Iterative Modulo Scheduling", MICRO 1994).

#include "stagecraft/schedules/generators/assembly.h"

namespace stagecraft {

/// The best that list scheduling by the request's costs makes, the patterns included, where no rank keeps
/// more than `micro_batches(ranks)` micro-batches' share from their forward to their weight gradient.
[[nodiscard]] ScheduleProgram v_program(const char* schedule, const ScheduleRequest& request,
                                        int (*micro_batches)(int ranks));

}  // namespace stagecraft
