#pragma once

// The memory proof's peak of one rank, read off the rank's own order with lowering's default options. What
// counts is in schedules/memory/held.h. The proof still has the last word on what a search returns.

#include "schedules/lowering/lowering.h"
#include "schedules/synthesis/problem.h"

namespace stagecraft::synthesis {

/// Linear in the order's length; fast enough for the inner loop of a search. `order` is of a rank of
/// well-formed orders. `extra_slots` are those that lowering gives a channel beyond the ones read at once:
/// the usual ones, or more where the rendezvous rule needs them (Pricing::extra_slots).
[[nodiscard]] Bytes peak_memory(const Problem& problem, Rank rank, const Order& order,
                                int extra_slots = LoweringOptions{}.extra_slots);

/// Whether every rank is within the capacity, if there is one.
[[nodiscard]] bool fits(const Problem& problem, const Orders& orders,
                        int extra_slots = LoweringOptions{}.extra_slots);

/// What `rank` holds whatever its order: what stands of its stages and, where losses are printed, slots for
/// them.
[[nodiscard]] Bytes standing_memory(const Problem& problem, Rank rank);

}  // namespace stagecraft::synthesis
