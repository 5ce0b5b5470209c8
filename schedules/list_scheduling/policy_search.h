#pragma once

// Orders of a synchronous step found by trying policies of the list scheduler. A policy says when, in a
// pattern that repeats with every micro-batch, each stage's forward, input gradient and weight gradient are due,
// and how many micro-batches each stage may hold; the list scheduler makes of it an order that keeps to the true
// times and to the memory. A pattern has few numbers, so that a few hundred orders are a search; what the
// pattern says of the steady state, the scheduler's filling of idle time makes of the first and last
// micro-batches.
//
// That orders of loops and Vs are such patterns, squeezed, is from Qi et al., "Pipeline Parallelism with
// Controllable Memory", arXiv 2405.15362, section 3; to search for priorities that a list scheduler decodes,
// from Bean, "Genetic Algorithms and Random Keys for Sequencing and Optimization", ORSA J. Computing 6, 1994.

#include "schedules/list_scheduling/list_scheduler.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace stagecraft {

struct PolicySearchLimits {
  std::int64_t schedules = 0;  ///< to make
  std::uint64_t draws = 0;     ///< which sequence of random numbers
  /// Orders to begin with: what they come to in the true times and memory, if that is among the best. Replayed,
  /// so of the workload; those that deadlock are passed over.
  std::vector<Orders> seeds{};
  /// Ends the search with what is known when false; may be empty.
  std::function<bool()> go_on{};
  /// Asked of what would be among the best: false leaves it out. May be empty.
  std::function<bool(const Orders&)> accept{};
};

/// The best few, best first, no two of one value; none if nothing is accepted. Every one keeps within `limit`.
/// The same workload and limits give the same result on every machine.
[[nodiscard]] std::vector<ListSchedule> search_policies(const Workload& workload, const KeepLimit& limit,
                                                        const PolicySearchLimits& limits);

}  // namespace stagecraft
