#pragma once

// One rank's part of a lowered program, with everything that follows from the program alone. It is made once
// for each distinct program of a run and shared, read-only, by all of the run's segments: a step looks things
// up by the position of its action and searches for nothing.
//
// Positions are indices into `list`; stages are counted among the rank's own, ascending.

#include "engine/core/version_reads.h"
#include "schedules/program/program.h"
#include "schedules/rules/staleness.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stagecraft {

/// What a backward that is a rank's last one into a group begins, layer by layer, beside the work itself.
enum class AtBackward : std::uint8_t {
  nothing,
  join_sum,        ///< this rank's part of the sum over the stage's replicas
  look_at_layers,  ///< a look whether gradients are finite, while they are in the cache; on the CPU alone
};

/// What is known of an action besides what it says.
struct ActionFacts {
  std::int32_t stage = -1;   ///< its stage among the rank's; -1: it is of none, or of another rank's
  Group group{};             ///< whose step it belongs to; a release is of the step of what stands before it
  MicroBatch micro_batch{};  ///< that it belongs to; not valid for what belongs to none
  bool recomputed_later = false;  ///< a forward (or recompute) of a micro-batch that the list recomputes
  AtBackward at_backward = AtBackward::nothing;
  std::int32_t first_tie = 0, ties = 0;  ///< the tied weights that the rank joins with it, among tie_joins
};

/// What a list does with one of the rank's stages.
struct StageFacts {
  StageId id{};
  bool last = false;                         ///< of the model
  bool loads = false;                        ///< its forwards come behind loads
  std::vector<MicroBatch> loaded{};          ///< in the order of the list
  std::vector<UpdateStaleness> staleness{};  ///< by group; of training programs
  VersionReads versions{};
};

/// Micro-batches [first, first + size).
struct GroupFacts {
  int first = 0;
  int size = 0;
};

struct RankProgram {
  /// `program` is proved, or planted with errors by a test: nothing here relies on the proof.
  RankProgram(const LoweredProgram& program, Rank its_rank);

  ProgramHeader header;
  Rank rank;
  std::vector<Action> list;
  std::vector<SlotInfo> slots;  ///< of this rank; Slot indexes into it

  std::vector<ActionFacts> facts;  ///< by position
  std::vector<StageFacts> stages;  ///< ascending
  std::vector<GroupFacts> groups;  ///< by group
  std::vector<Group> group_of;     ///< by micro-batch
  std::vector<TieId> tie_joins;    ///< ActionFacts name ranges of these
  bool agrees = false;             ///< all ranks agree on norms
  bool sums = false;               ///< it takes part in sums of gradients
  /// How far any rank's list goes ahead of a micro-batch before it comes back to it.
  int most_ahead = 0;

  [[nodiscard]] bool training() const { return header.kind == SegmentKind::train; }
  [[nodiscard]] const ActionFacts& of(std::size_t at) const { return facts[at]; }
  /// The tied weights that the rank joins with the action.
  [[nodiscard]] std::span<const TieId> ties_joined_at(std::size_t at) const {
    return std::span(tie_joins).subspan(static_cast<std::size_t>(facts[at].first_tie),
                                        static_cast<std::size_t>(facts[at].ties));
  }
};

using RankProgramPtr = std::shared_ptr<const RankProgram>;

[[nodiscard]] inline RankProgramPtr rank_program(const LoweredProgram& program, Rank rank) {
  return std::make_shared<const RankProgram>(program, rank);
}

/// The micro-batch that an action of a list belongs to; not valid for what belongs to none.
[[nodiscard]] MicroBatch micro_batch_of(const Action& action);

}  // namespace stagecraft
