#pragma once

// The memory proof's peak of one rank (schedules/checker/memory.cpp has the contract), read off the rank's own order
// with lowering's default options. It is the proof's figure unless the rendezvous rule needs more slots than usual;
// the proof has the last word on what a search returns.

#include "schedules/synthesis/problem.h"

namespace stagecraft::synthesis {

/// Linear in the order's length. `order` is of a rank of well-formed orders.
[[nodiscard]] Bytes peak_memory(const Problem& problem, Rank rank, const Order& order);

/// What `rank` holds whatever its order: weights, optimizer state, gradients and the batches read ahead.
[[nodiscard]] Bytes standing_memory(const Problem& problem, Rank rank);

/// What a seat holds at least of a micro-batch whose forward is done and whose input part is not, slot included.
[[nodiscard]] Bytes kept_a_micro_batch(const Problem& problem, const Seat& seat);

}  // namespace stagecraft::synthesis
