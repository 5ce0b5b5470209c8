#pragma once

// The memory proof's peak of one rank (schedules/checker/memory.cpp has the contract), read off the rank's
// own order with lowering's default options. The proof still has the last word on what a search returns.

#include "schedules/lowering.h"
#include "schedules/synthesis/problem.h"

namespace stagecraft::synthesis {

/// Linear in the order's length. `order` is of a rank of well-formed orders; `extra_slots` are those that
/// lowering gives a channel beyond the ones read at once: the usual ones, or more where the rendezvous rule
/// needs them (Pricing::extra_slots).
[[nodiscard]] Bytes peak_memory(const Problem& problem, Rank rank, const Order& order,
                                int extra_slots = LoweringOptions{}.extra_slots);

/// Whether every rank is within the capacity, if there is one.
[[nodiscard]] bool fits(const Problem& problem, const Orders& orders,
                        int extra_slots = LoweringOptions{}.extra_slots);

/// What `rank` holds whatever its order: weights, optimizer state, gradients, the batches read ahead
/// and, where they are printed, slots for losses.
[[nodiscard]] Bytes standing_memory(const Problem& problem, Rank rank);

/// What a seat holds at least of a micro-batch whose forward is done and whose input part is not, slot
/// included; of one that is recomputed, until then.
[[nodiscard]] Bytes kept_a_micro_batch(const Problem& problem, const Seat& seat);

/// And from the end of the input part to the end of the weight part.
[[nodiscard]] Bytes kept_for_weight_part(const Problem& problem, const Seat& seat);

/// What the sum of a stage's gradients over its replicas needs beside them, from the beginning of a rank's
/// last weight part.
[[nodiscard]] Bytes sum_staging(const Problem& problem, StageId stage);

/// Receive slots of a seat's channels beyond those of the micro-batches just counted, in every order of a
/// rank that has `room` for those.
[[nodiscard]] Bytes spare_slots(const Problem& problem, const Seat& seat, Bytes room);

}  // namespace stagecraft::synthesis
