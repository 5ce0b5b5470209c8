#pragma once

// Repeating patterns on a V of two stages a rank (Qi et al., "Pipeline Parallelism with Controllable Memory",
// arXiv 2405.15362, section 3). With all parts of a micro-batch taking one step, a rank has six of them a
// micro-batch; a pattern says in which step a micro-batch's parts run on each rank, such that the next
// micro-batch's, six steps later, fit in between. What a rank keeps follows from how long a micro-batch
// stays: from the steps that a hop from rank to rank takes.

#include "schedules/generators/list_scheduler.h"

#include <vector>

namespace stagecraft {

/// Steps from the start of a part on one rank to that on the next: of the forward down the ranks and back up,
/// of the input gradient down and back up. At least 1.
struct HopSteps {
  int forward_down = 1;
  int forward_up = 1;
  int backward_down = 1;
  int backward_up = 1;
};

/// The orders of the pattern that ends soonest among those in which no rank keeps more than `capacity`
/// (stage, micro-batch) pairs from their forward to their weight gradient, for each of `hops` that has one.
/// None on a V of more or fewer passes than two.
[[nodiscard]] std::vector<Orders> v_patterns(const ProgramHeader& header, const VirtualStages& shape,
                                             const std::vector<HopSteps>& hops, int capacity);

/// A V schedule: the best that list scheduling by the request's costs makes, the patterns included, where no
/// rank keeps more than so many micro-batches' share from their forward to their weight gradient.
[[nodiscard]] ScheduleProgram v_program(const char* schedule, const ScheduleRequest& request,
                                        const std::vector<HopSteps>& hops, int (*micro_batches)(int ranks));

}  // namespace stagecraft
