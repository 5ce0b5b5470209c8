#include "stagecraft/schedules/synthesis/memory_needs.h"

#include "stagecraft/schedules/synthesis/rank_memory.h"

#include <algorithm>

namespace stagecraft::synthesis {

MemoryNeeds memory_needs(const Problem& problem, Rank rank, std::size_t place) {
  const int count = problem.replicas()[problem.replicas_of(rank)[place]].count;
  const std::vector<int> none(static_cast<std::size_t>(count), 0);
  MemoryNeeds needs{none, none, none};
  if (!problem.capacity()) return needs;
  const RankMemory state(problem, rank);
  const auto fits = [&](const ReplicaCounts& before, Op op) {
    return state.least_during(before, place, op) <= *problem.capacity();
  };
  // A later one needs no less than an earlier one that comes before it: counts only grow. With all weight
  // parts done whose input parts are, least is held.
  int inputs = 0;
  int weights = 0;
  for (int n = 0; n < count; ++n) {
    const auto at = static_cast<std::size_t>(n);
    while (inputs < n && !fits({n, inputs, inputs}, Op::forward)) ++inputs;
    const auto any_fits = [&] {
      for (int i = std::max(inputs, weights); i <= n; ++i) {
        if (fits({n, i, weights}, Op::forward)) return true;
      }
      return false;
    };
    while (weights < inputs && !any_fits()) ++weights;
    needs.inputs_before_forward[at] = inputs;
    needs.weights_before_forward[at] = weights;
  }
  weights = 0;
  for (int n = 0; n < count; ++n) {
    while (weights < n && !fits({n + 1, n, weights}, Op::backward_input)) ++weights;
    needs.weights_before_input[static_cast<std::size_t>(n)] = weights;
  }
  return needs;
}

}  // namespace stagecraft::synthesis
