#pragma once

// Times below which no program of a synchronous step can stay. The highest of all bounds holds. They are of
// the simulator's makespan, or where ranks go on from step to step (Problem::goes_on) of the time from one step to
// the next. Then only what lies between a rank's first action and its last counts: its own work, its area of
// memory, and what begins and ends with the first stage. Contention, reductions and the norm agreement's own time only add to that and
// count as nothing here.
// Of frozen first stages, which have no backward, only the work counts.
//
// For which programs: those in which a stage takes the micro-batches of each part in their order, as all
// schedules of the library and all that a search tries do, lowered as usual (lowering.h). A backward in one
// piece is both parts with the gradient leaving later. A recompute is a computation of its own, between its
// forward and its input part; of memory a stage that repeats forwards counts with its inputs only.
//
// Work. Every computation has a head, before whose end it cannot begin, and a tail that follows it
// (heads_and_tails.h). The best a rank could do with its computations, if it could interrupt them, is a bound
// (one_machine.h). In particular the whole chain of one micro-batch, down and up again, is a path.
//
// Memory, with a capacity. What does not fit at once must be over before (heads_and_tails.h): more needs, so
// later heads and longer tails. With room for k micro-batches on a rank that is k tracks with a round trip to
// the last stage and back for each micro-batch; with few everywhere, the tracks of all ranks entwined.
//
// And the area of memory and time. From the end of its forward to the end of its input part a micro-batch of
// a stage keeps b bytes (and during the forward, if its transient peak is as large), for at least as long as
// it takes to get to the last stage and back: d. A rank that has room for M bytes beside what always stands
// there holds at every moment at most M of them, so the area under all its micro-batches of all its stages,
// sum of b d, is at most M times the stretch from its first forward to its last input part. The least head is
// before that stretch and the least tail after it. The same of the stretch to the last weight part, with what
// is kept for that part while it is computed.

#include "schedules/synthesis/problem.h"

namespace stagecraft::synthesis {

struct LowerBound {
  enum class Kind : std::uint8_t { work, memory };
  double seconds = 0;
  Kind kind = Kind::work;
  Rank rank{};
};

[[nodiscard]] LowerBound lower_bound(const Problem& problem);

/// A time that meets the bound but for the rounding of sums.
[[nodiscard]] constexpr bool meets(double seconds, double bound) { return seconds <= bound * (1 + 1e-9); }

}  // namespace stagecraft::synthesis
