#pragma once

// One forward, one backward on a V.

#include "schedules/list_scheduling/list_scheduler.h"
#include "schedules/program/placement.h"

namespace stagecraft {

/// Orders of a V of two stages per rank in which no rank of p keeps more than 2 p micro-batches of a stage.
///
/// Before its first backward, the rank at position r has made 2 p - r - 1 forwards of its first stage (fewer
/// where there are fewer micro-batches) and r + 1 of its last: its memory is full. Then it makes backward and
/// forward in turn. Those of its last stage alone come first, p - r backwards, until the first gradient is
/// down the ranks again; from there on both stages' alternate, and where one has none left its turn is passed.
/// Every weight gradient stands behind its input gradient.
[[nodiscard]] Orders v_turn_orders(const Workload& workload, const VirtualStages& shape);

}  // namespace stagecraft
