#pragma once

// Where no plan fits a cluster's memory: what would. Each kind of change is tried by itself, the others as
// the request has them, and the first of each kind that fits is told. What is told is planned and proved.
// That less would not do is as certain as the planner's search for any plan that fits: exact where its
// stages' memory does not follow the costs (Schedule::orders_by_time), for replicas as far as a small budget
// finds them.

#include "partitioner/search/planner.h"

#include <cstdint>
#include <vector>

namespace stagecraft {

struct Remedy {
  enum class Kind : std::uint8_t {
    schedule,         ///< 1f1b instead of one that orders by time; then the only one
    recompute,        ///< of each stage what it needs
    smaller_batches,  ///< the largest smaller micro-batch size that was measured, as many as fill the step
    more_devices,     ///< the fewest children of the outermost level that has several
    more_memory,      ///< the least a device, to a thousandth
  };
  Kind kind = Kind::recompute;
  PlanRequest request{};  ///< with the change
  Cluster cluster{};      ///< with the change
  Bytes needs;            ///< of the rank that needs most, in the plan that was found
};

/// In the order above, at most one of each kind. Each of `requests` has been refused on `cluster` for its
/// memory, or for itself; changed is the one that fits the least memory. For a schedule that orders by time 1f1b is
/// asked, whose order needs about as much: a program for each question would take long. For one that is searched for
/// the order that runs one micro-batch at a time is asked, which hardly any other needs less memory than.
[[nodiscard]] std::vector<Remedy> remedies(const Profile& profile, const Cluster& cluster,
                                           const std::vector<PlanRequest>& requests);

}  // namespace stagecraft
