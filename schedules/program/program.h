#pragma once

// Programs: what every rank does in one segment of a run, at two levels. A *schedule program* holds compute
// and reduction actions in order; *lowering* (lowering.h) adds every transfer and buffer. Both print to text
// and JSON and read back.

#include "base/error.h"
#include "schedules/program/action.h"
#include "schedules/program/placement.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

enum class SegmentKind : std::uint8_t { train, validate };

template <>
inline constexpr std::array enum_names<SegmentKind>{"train", "validate"};

/// A boundary between two stages that are no neighbours: what `from` makes and `to` reads goes there directly,
/// and its gradient directly back, beside what goes from neighbour to neighbour.
struct Skip {
  StageId from{}, to{};
  constexpr auto operator<=>(const Skip&) const = default;
};

void describe(auto& v, Skip& s) {
  v.required("from", s.from, "the stage that makes it");
  v.required("to", s.to, "the stage that reads it");
}

/// What a program is for: the part that all levels share.
struct ProgramHeader {
  /// The generator's name, "custom" for one that people wrote; shown, never branched on.
  std::string schedule;
  SegmentKind kind = SegmentKind::train;
  Placement placement{};
  /// Micro-batches of each accumulation, in order. A synchronous step has one group; an asynchronous segment
  /// has as many as it makes updates. The last group of an epoch may be shorter.
  std::vector<int> group_sizes{};
  /// Stages that load fields of the batch (masks), ascending, besides the first and the last, which always
  /// load.
  std::vector<StageId> also_load{};
  /// Of each weight that several layers hold, the stages of those layers in the layers' order: a stage of two
  /// of them stands there twice. Each layer has a copy, and its stages sum their gradients (Op::tie).
  std::vector<std::vector<StageId>> ties{};
  /// Boundaries besides those between neighbours, ascending.
  std::vector<Skip> skips{};
  /// The first stage with a trained weight. The stages before it are frozen: they have forwards alone, no gradient
  /// goes to them, and all their forwards read version 0. Always 0 in validation.
  StageId gradient_from{0};

  /// Whether each of the stage's micro-batches has a backward, and each group a step.
  [[nodiscard]] bool has_backward(StageId stage) const {
    return kind == SegmentKind::train && stage >= gradient_from;
  }
  /// Whether its backwards make a gradient for the previous stage.
  [[nodiscard]] bool sends_gradient(StageId stage) const {
    return kind == SegmentKind::train && stage > gradient_from;
  }
  /// Whether a layer of the stage holds the tied weight.
  [[nodiscard]] bool holds(StageId stage, TieId tie) const;
  /// Whether the stage's forwards come behind loads.
  [[nodiscard]] bool loads(StageId stage) const;
  [[nodiscard]] int micro_batches() const;
  [[nodiscard]] int groups() const { return static_cast<int>(group_sizes.size()); }
  [[nodiscard]] Group group_of(MicroBatch micro_batch) const;
  [[nodiscard]] MicroBatch first_of(Group group) const;
  /// `group_of` of every micro-batch, for those who ask about all of them.
  [[nodiscard]] std::vector<Group> groups_by_micro_batch() const;
  bool operator==(const ProgramHeader&) const = default;
};

/// More micro-batches than any segment has; keeps a slip in a file from being taken for a size.
inline constexpr std::int64_t kMaxMicroBatches = 10'000'000;
/// The same for actions: more than 4,096 ranks with 512 micro-batches of split backwards need. Readers and
/// generators refuse what has more, before it takes the memory.
inline constexpr std::int64_t kMaxActions = 20'000'000;

/// Throws InputError at `place` unless every stage has ranks, no stage has one twice, every rank from 0 to
/// the highest holds a stage, and all groups have micro-batches (one group, for validation). Everything that
/// takes a program may rely on it; generators and readers see to it.
void validate_header(const ProgramHeader& header, const InputPlace& place = {});

/// Compute and reduction actions in order, one list per rank.
struct ScheduleProgram : ProgramHeader {
  std::vector<std::vector<Action>> ranks{};
  bool operator==(const ScheduleProgram&) const = default;
};

/// A receive buffer of a rank. It holds one boundary tensor at a time, always of the same transfer kind and
/// boundary.
struct SlotInfo {
  Payload payload = Payload::activation;
  StageId from{};
  StageId to{};
  std::int32_t index = 0;
  bool operator==(const SlotInfo&) const = default;
};

/// Position of an action: a rank and an index into its list. By default nowhere.
struct ActionPlace {
  Rank rank{};
  std::int32_t at = -1;

  [[nodiscard]] bool found() const { return at >= 0; }
  /// On the same rank and earlier in its list.
  [[nodiscard]] bool before(ActionPlace other) const {
    return found() && rank == other.rank && at < other.at;
  }
  bool operator==(const ActionPlace&) const = default;
};

/// Everything a rank does, in the order it does it, transfers and buffers included. The executor reorders
/// nothing.
struct LoweredProgram : ProgramHeader {
  std::vector<std::vector<Action>> ranks{};
  std::vector<std::vector<SlotInfo>> slots{};  ///< per rank; Slot indexes into it
  int slots_per_channel = 0;  ///< most receive slots of any boundary channel; 0: no transfers

  [[nodiscard]] const Action& action(ActionPlace place) const {
    return ranks[place.rank.index()][static_cast<std::size_t>(place.at)];
  }
  /// "rank 0 [12] backward of micro-batch 3 on stage 1": how every message names an action.
  [[nodiscard]] std::string name(ActionPlace place) const;
  /// Calls `visit(place, action)` with all actions, rank by rank.
  template <class Visit>
  void each_action(const Visit& visit) const {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ActionPlace place{Rank{r}, 0};
      for (const Action& action : ranks[r]) {
        visit(place, action);
        ++place.at;
      }
    }
  }
  bool operator==(const LoweredProgram&) const = default;
};

}  // namespace stagecraft
