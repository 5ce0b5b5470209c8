#pragma once

// What must be over on a rank before a computation can begin there, because there would not be the memory for
// both. A stage's parts go in micro-batch order, so "so many are held at most" says which: with room for k
// micro-batches the forward of number n waits for the input part of number n - k. These needs are like those
// of a stage for another's results, and hold of every order that fits.

#include "stagecraft/schedules/synthesis/problem.h"

#include <vector>

namespace stagecraft::synthesis {

/// Of one replica, by the own micro-batch's number.
struct MemoryNeeds {
  std::vector<int> inputs_before_forward;   ///< input parts that must be over, none behind its own
  std::vector<int> weights_before_forward;  ///< weight parts, likewise
  std::vector<int> weights_before_input;    ///< likewise before an input part
};

/// Of a rank's `place`-th replica. Without a capacity there are none. Where nothing would do, as many as there
/// can be: least_memory.h says so better.
[[nodiscard]] MemoryNeeds memory_needs(const Problem& problem, Rank rank, std::size_t place);

}  // namespace stagecraft::synthesis
