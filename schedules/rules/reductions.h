#pragma once

// What all readers of a program agree on about the sums of gradients over a stage's replicas, and of a tied
// weight's over all that hold it: who takes part, when a rank joins one, and how much memory that takes.

#include "schedules/program/program.h"

#include <cstdint>
#include <vector>

namespace stagecraft {

/// Who takes part in a reduce of a stage, or in an agree_norm, in ascending order.
[[nodiscard]] std::vector<Rank> members_of(const Placement& placement, Op op, StageId stage);

/// The same of a tied weight (`holders` as in ProgramHeader::ties).
[[nodiscard]] std::vector<Rank> members_of(const Placement& placement, const std::vector<StageId>& holders);
/// The copies of a tied weight by their ranks, in the order in which their gradients are added: the last
/// layer's first, as backward comes to them, each layer's replicas in order. A rank of several stands there
/// as often.
[[nodiscard]] std::vector<Rank> copies_of(const Placement& placement, const std::vector<StageId>& holders);
/// The ranks of copies, each once, by their first ones.
[[nodiscard]] std::vector<Rank> ranks_of(const std::vector<Rank>& copies);

/// Position of the last backward into the group of the reduce, tie or step at position `end`, before it and of
/// its stage, or of a stage that holds the tied weight: where a rank joins the sum that ends there. -1: the rank
/// has no micro-batch in the group, and joins at the end itself. Linear in how far the two are apart.
[[nodiscard]] std::int32_t last_backward_into(const ProgramHeader& header, const std::vector<Action>& list,
                                              std::int32_t end);

/// Most that a rank stages of the other replicas' values at a time: what can be under way while a layer is
/// computed, for transfers go on between layers only. Half of DistributedDataParallel's default bucket (Li et
/// al., VLDB 2020) and more.
inline constexpr Bytes kReduceStaging{16 << 20};
/// Small tensors travel together, in copies of at most so many bytes.
inline constexpr Bytes kReducePack{256 << 10};
/// Where staged pieces begin, in bytes: copies and sums are fastest there.
inline constexpr std::int64_t kReduceLine = 64;

/// What a rank stages from the beginning of the backward at which it joins a sum to the end of the reduce:
/// the others' values of its own part, and copies of small tensors. `summed`: parameters and buffers of the
/// stage. Nothing for one replica.
[[nodiscard]] Bytes reduce_staging(Bytes summed, int replicas);
/// The same of the sum of a tied weight of so many bytes on `rank`: the others' values of its own part.
[[nodiscard]] Bytes tie_staging(Bytes weight, const std::vector<Rank>& copies, Rank rank);

}  // namespace stagecraft
