#pragma once

// Times below which no program of a synchronous step can stay, whatever its order. Two bounds a rank; the
// highest of all holds. Both are of the simulator's makespan; contention, reductions and the norm agreement's
// own time only add to that and count as nothing here.
//
// Heads and tails. Computations need each other: the forward of a micro-batch that of the stage before and
// the transfer between, the input part that of the stage behind, likewise, and the weight part the input
// part. The checker lets forwards of a replica, and its weight parts, go in micro-batch order only. A
// backward in one piece is both parts with the gradient leaving later. A recompute is a computation of its
// own, between its forward and its input part. So nothing starts before the longest
// path of such needs that leads to it (its head) is over, and after its end the longest path that leads on
// from it, and the steps, are still to come (its tail). In particular the whole chain of one micro-batch,
// down and up again, is a path.
//
// Work. A rank does one thing at a time. The best it could do with its computations, if each could be started
// at its head, interrupted at will, and were followed by its tail, is a bound, and it is known: always do
// what has the longest tail of what has come (Jackson's preemptive schedule; Carlier, "The one-machine
// sequencing problem", EJOR 11, 1982, section 2). This is never below the rank's work between its least head
// and its least tail.
//
// Memory, with a capacity. From the end of its forward to the end of its input part a micro-batch of a stage
// keeps b bytes (recomputed: of these only its input and targets count) (and during the forward, if its
// transient peak is as large), for at least as long as it takes to get to the last stage and back: d. A rank
// that has room for M bytes beside what always stands there holds at every moment at most M of them, so the
// area under all its micro-batches, sum of b d, is at most M times the stretch from its first forward to its
// last input part. Where the rank holds one stage, at most k = M / b (rounded down) are held at once: they
// can be dealt to k tracks on which none overlap, some track gets m / k of them (rounded up), and the stretch
// is at least so many times d. The least head is before that stretch and the least tail after it. The same of
// the stretch to the last weight part, with what is kept for that part while it is computed.

#include "schedules/synthesis/problem.h"

namespace stagecraft::synthesis {

struct LowerBound {
  enum class Kind : std::uint8_t { work, memory };
  double seconds = 0;
  Kind kind = Kind::work;
  Rank rank{};
};

[[nodiscard]] LowerBound lower_bound(const Problem& problem);

/// A makespan that meets the bound but for the rounding of sums.
[[nodiscard]] constexpr bool meets(double makespan, double bound) { return makespan <= bound * (1 + 1e-9); }

}  // namespace stagecraft::synthesis
