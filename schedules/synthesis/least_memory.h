#pragma once

// The least memory that any order of a rank needs: what makes a cap impossible, whatever is searched.
//
// An order of a rank is a path through its counts (rank_memory.h), from nothing done to everything, and its
// peak by the proof is at least the most that RankMemory says of any step on it. The least such most over all
// paths is found by going on, always, from the state reached with the least (Dijkstra's algorithm with the
// maximum in place of the sum). Paths respect what every order that finishes respects: a stage's parts in
// micro-batch order, each behind what it needs on the same rank, be it by way of other ranks.
//
// States that need more than the least are never gone on from: there are few where memory is tight.

#include "schedules/synthesis/problem.h"

#include <cstddef>

namespace stagecraft::synthesis {

/// No order of `rank` has a lower peak by the proof. After `most_states` what is known by then is returned:
/// the least bound so far, which holds as well.
[[nodiscard]] Bytes least_memory(const Problem& problem, Rank rank, std::size_t most_states = 100'000);

}  // namespace stagecraft::synthesis
