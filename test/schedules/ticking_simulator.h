#pragma once

// A second opinion on the simulator that shares no code with it: a clock that ticks. At every tick each rank
// whose action is over goes on to its next ones, and each link that is free takes the next transfer
// that waits for it. Nothing is looked up ahead and nothing is sorted but the queue. All times must be whole
// seconds, and transfers over shared links at least one.

#include "schedules/costs/costs.h"
#include "schedules/program/program.h"

#include <vector>

namespace stagecraft::test {

struct Ticked {
  int makespan = 0;
  std::vector<int> done;  ///< per rank, when its last action ended
};

/// `program` must finish.
[[nodiscard]] Ticked tick(const LoweredProgram& program, const CostTable& costs);

}  // namespace stagecraft::test
