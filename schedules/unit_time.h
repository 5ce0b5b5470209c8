#pragma once

// How long a schedule takes when nothing but its order and its receive slots matter: a forward and either
// half of a backward take one tick, a whole backward two, everything else none. Lowering chooses by it how
// many slots a channel needs so as not to slow the schedule down, before anybody knows what a stage costs.
// Recomputes take none either, so that a program is lowered alike whatever it repeats: the planner, which
// chooses what is repeated, carries bounds over from one choice to the other.
//
// Transfers take no time but need a slot: a channel's n-th receive is posted when so many of its earlier ones
// have been released that a slot is free. A rank holds on where lowering has it wait for a send that no
// receive is posted for.

#include "schedules/lowering_scan.h"
#include "schedules/transfer_flow.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft {

struct UnitTime {
  std::int64_t ticks = 0;  ///< until the last rank is done
  bool held_up = false;    ///< some action waited for a slot: more of them might be faster
};

/// With `surplus` slots a boundary channel more than it reads at once (lowering_scan.h). Nothing when the
/// program cannot finish so. `flow` is made of `scans`.
[[nodiscard]] std::optional<UnitTime> unit_time(const TransferFlow& flow, const std::vector<RankScan>& scans,
                                                std::int32_t surplus);

}  // namespace stagecraft
