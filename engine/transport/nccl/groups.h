#pragma once

// The communicators by which a run's programs sum over replicas, and the order of the additions.
//
// Each stage has its own, since sums of several stages go on side by side, in another order on every rank. On
// one communicator all members launch the same in the same order, or NCCL would stand still: a stage's sums
// are made one after another (Executor::join_sum), in the order of its `reduce` actions, which is proved to
// be the same on all replicas (schedules/checker/matching.cpp, check_collectives); within one, tensors come
// layer by layer and NcclSum cuts them into launches by their sizes alone.
//
// Nor do communicators wait for each other in a circle. Each has a stream that nothing else uses, within as
// many as the device has queues (NcclTransport). What is launched there waits for what its rank has computed,
// for what its sum has launched before on the same tensors, and for the other members' launch, which comes at
// the latest when they come to their `reduce`; and a rank's computing waits for it at its own `reduce` alone.
// That a `reduce` may wait for all members to come to theirs is in the graph that the deadlock proof looks
// for circles in (schedules/rules/dependencies.h).

#include "stagecraft/schedules/program/program.h"

#include <compare>
#include <cstdint>
#include <vector>

namespace stagecraft {

/// ordered: replica 0's values plus replica 1's, and so on, which is what a loop over the micro-batches of
/// each replica in turn adds up to, to the bit. nccl: one ncclAllReduce, whose order is NCCL's own; for two
/// replicas that is the same, as a + b = b + a.
enum class SumOrder : std::uint8_t { ordered, nccl };

namespace transport {

/// All replicas of a stage; or, where three and more are summed in order, two neighbours of their chain.
struct NcclGroup {
  StageId stage;
  std::vector<Rank> members;  ///< in the replicas' order

  auto operator<=>(const NcclGroup&) const = default;
};

/// Whether replicas sum in a chain (nccl_sum.h), or else by one all-reduce.
[[nodiscard]] constexpr bool by_chain(SumOrder order, std::size_t replicas) {
  return order == SumOrder::ordered && replicas > 2;
}

/// Ascending, each once.
[[nodiscard]] std::vector<NcclGroup> groups_of(const std::vector<const LoweredProgram*>& programs,
                                               SumOrder order);

}  // namespace transport
}  // namespace stagecraft
