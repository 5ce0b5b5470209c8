#pragma once

// Orders of a V from building blocks.

#include "schedules/list_scheduling/list_scheduler.h"
#include "schedules/program/placement.h"

#include <vector>

namespace stagecraft {

/// Orders of a V of two stages per rank in which no rank keeps more than `capacity` micro-batches of its stages, from
/// their forward to their weight gradient: made in time slots, as if every part took one. A block says in which slot
/// each forward and input gradient of a micro-batch is; the next micro-batch's is six slots later. What idle slots there
/// are at the begin and the end is then squeezed out (Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv
/// 2405.15362, sections 3 and 4). The fastest few in slots, fastest first; none where no block fits, or
/// where there is 1F1B's memory, of which such blocks make no use.
[[nodiscard]] std::vector<Orders> v_block_orders(const Workload& workload, const VirtualStages& shape,
                                                 int capacity);

}  // namespace stagecraft
