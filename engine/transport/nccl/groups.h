#pragma once

// The communicators by which a run's programs sum over replicas and over the layers of tied weights, and the
// order of the additions. And one of all ranks for the norms of gradients, where devices clip by them
// (Tag::norms): each number is one rank's and zero elsewhere, so it is the same in any order.
//
// Each stage has its own, and each tied weight, since their sums go on side by side, in another order on every
// rank. On one communicator all members launch the same in the same order, or NCCL would stand still: sums of
// one stage or weight are made one after another (GradientSums), in the order of its `reduce`
// or `tie` actions, which is proved to be the same on all members (schedules/checker/matching.cpp,
// check_collectives); within one, tensors come layer by layer and NcclSum cuts them into launches by their
// sizes alone.
//
// Nor do communicators wait for each other in a circle. Each has a stream that nothing else uses, within as
// many as the device has queues (NcclTransport). What is launched there waits for what its rank has computed,
// for what its sum has launched before on the same tensors, and for the other members' launch, which comes at
// the latest when they come to their `reduce` or `tie`; and a rank's computing waits for it at its own alone.
// That each of the two may wait for all members to come to theirs is in the graph that the deadlock proof looks
// for circles in (schedules/rules/dependencies.h).

#include "engine/records/settings/sum_order.h"
#include "schedules/program/program.h"

#include <compare>
#include <cstdint>
#include <vector>

namespace stagecraft {

namespace transport {

/// All ranks that hold copies of what is summed; or, in a chain, those of two copies behind each other.
struct NcclGroup {
  Tag sum;                    ///< that of the sums, of group 0
  int link = kAll;            ///< between copies `link` and `link + 1`
  std::vector<Rank> members;  ///< in the copies' order, each once

  static constexpr int kAll = -1;
  auto operator<=>(const NcclGroup&) const = default;
};

/// Whether copies are summed in a chain (nccl_sum.h), or else by one all-reduce.
[[nodiscard]] bool by_chain(SumOrder order, const std::vector<Rank>& copies);

/// Ascending, each once. `norms`: with that of all ranks, for programs that agree on a norm.
[[nodiscard]] std::vector<NcclGroup> groups_of(const std::vector<const LoweredProgram*>& programs,
                                               SumOrder order, bool norms = false);

}  // namespace transport
}  // namespace stagecraft
