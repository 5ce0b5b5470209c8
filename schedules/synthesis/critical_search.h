#pragma once

// Local search along the critical path, as for job shops: of the computations that end last, each waits for
// the one before; only moving one of a rank's uninterrupted stretch of them to that stretch's begin or end
// can make the whole shorter (Balas and Vazacopoulos, Management Science 44, 1998). What a move makes of the
// makespan is estimated from the heads and tails of what it passes (Taillard, ORSA J. Computing 6, 1994),
// so that one pass over the order is spent per move made, not per move tried; the best goes, better or not,
// unless it takes a recent one back (tabu search: Glover, ORSA J. Computing 1, 1989). What would need more
// memory than there is is not moved.
//
// Where ranks go on from step to step, the whole is the longest time of a rank from its start to its end, for starts
// that a step before leaves (OrderGraph::settle).
//
// Transfers take their time and no link here, slots none: what is found is priced before it counts.

#include "schedules/synthesis/local_search.h"

namespace stagecraft::synthesis {

/// The best found, `start` at worst, which is well formed, finishes and fits. Every backward comes out split.
/// Of the limits' work a move costs a part of the order's computations.
[[nodiscard]] Found critical_search(const Problem& problem, Pricing& pricing, const Found& start,
                                    const SearchLimits& limits);

}  // namespace stagecraft::synthesis
