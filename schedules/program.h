#pragma once

// Programs: what every rank does in one segment of a run, at two levels. A *schedule program* holds compute
// and reduction actions in order; *lowering* (lowering.h) adds every transfer and buffer. Both print to text
// and JSON and read back.

#include "schedules/action.h"
#include "schedules/base/error.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

/// Which ranks hold which stage: `ranks[stage]` are the stage's replicas in order. A rank may appear under
/// several stages (virtual stages). Micro-batches go round-robin: replica = micro-batch mod width
/// (PipeDream's 1F1B-RR, SOSP'19).
struct Placement {
  std::vector<std::vector<Rank>> ranks{};

  [[nodiscard]] int stages() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] int world() const;  ///< number of ranks: the highest one plus one
  [[nodiscard]] int width(StageId stage) const { return static_cast<int>(ranks[stage.index()].size()); }
  [[nodiscard]] bool replicated() const;  ///< some stage has several ranks
  [[nodiscard]] Rank rank_of(StageId stage, MicroBatch micro_batch) const;
  [[nodiscard]] std::vector<StageId> stages_of(Rank rank) const;  ///< in ascending order
  /// One rank a stage, in order.
  [[nodiscard]] static Placement straight(int stages);
  /// Virtual stages in rounds: stage s on rank s mod `ranks` (Megatron-LM, arXiv 2104.04473, section 2.2).
  [[nodiscard]] static Placement looped(int ranks, int virtual_stages);
  /// Virtual stages down the ranks and up again: the last stage of one pass shares its rank with the first of
  /// the next; with two passes a V (arXiv 2405.15362, section 3).
  [[nodiscard]] static Placement zigzag(int ranks, int virtual_stages);
  bool operator==(const Placement&) const = default;
};

enum class SegmentKind : std::uint8_t { train, validate };

template <>
struct EnumNames<SegmentKind> {
  static constexpr std::array values{std::pair{SegmentKind::train, "train"},
                                     std::pair{SegmentKind::validate, "validate"}};
};

/// What a program is for: the part that all levels share.
struct ProgramHeader {
  std::string
      schedule;  ///< the generator's name, "custom" for one that people wrote; shown, never branched on
  SegmentKind kind = SegmentKind::train;
  Placement placement{};
  /// Micro-batches of each accumulation, in order. A synchronous step has one group; an asynchronous segment
  /// has as many as it makes updates. The last group of an epoch may be shorter.
  std::vector<int> group_sizes{};

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

/// Compute and reduction actions in order, one list a rank.
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

/// Everything a rank does, in the order it does it, transfers and buffers included. The executor reorders
/// nothing.
struct LoweredProgram : ProgramHeader {
  std::vector<std::vector<Action>> ranks{};
  std::vector<std::vector<SlotInfo>> slots{};  ///< per rank; Slot indexes into it
  int slots_per_channel = 0;  ///< most receive slots of any boundary channel; 0: no transfers
  bool operator==(const LoweredProgram&) const = default;
};

/// The text form, made to be read and written by people:
///
///   stagecraft program 1
///   schedule pipedream
///   kind train
///   stages 0,1 2
///   groups 2x2 1
///   rank 0: L0 F0 L2 F2 B0 A0 S0 P0 L4 F4v1 B2 A1 S1 P1 B4v1 A2 S2 P2
///   rank 1: ...
///
/// Grammar (words separated by blanks, "#" begins a comment, empty lines are skipped):
///
///   file     = "stagecraft program 1" { header } { rank }       one line each
///   header   = "schedule" NAME                                  absent: custom
///            | "kind" ( "train" | "validate" )                  absent: train
///            | "stages" { RANK { "," RANK } }                   a word a stage: the ranks of its replicas
///            | "groups" { SIZE | COUNT "x" SIZE }               micro-batches of each accumulation
///   rank     = "rank" RANK ":" { action }                       one line for every rank
///   action   = [ STAGE ] LETTER NUMBER [ "v" VERSION ]
///   LETTER   = L load, F forward, I backward_input, W backward_weight, B backward, R recompute (NUMBER is
///   the
///              micro-batch); A reduce, N agree_norm, S step, P report_loss (NUMBER is the group)
///
/// STAGE may be left out where the rank holds one stage; N has none. VERSION is the version of the weights
/// read, for F, I, W, B, R and S; left out it is 0, and for S the group's number. The group of a micro-batch
/// follows from the header.
[[nodiscard]] std::string to_text(const ScheduleProgram& program);
/// Throws InputError with `file` and the line: malformed words, numbers outside the program, anything said
/// twice, a rank without a line. Whether the program makes sense is the checker's question.
[[nodiscard]] ScheduleProgram program_from_text(const std::string& text, const std::string& file);

/// The same of a lowered program, one action a line, for debugging and goldens; not read back.
[[nodiscard]] std::string to_text(const LoweredProgram& program);

/// {"schedule", "kind", "stages": [[0, 1], [2]], "group_sizes": [2, 2, 1], "ranks": [[{"op": "forward",
/// "stage": 0, "micro_batch": 0, "version": 0, "group": 0}, ...]]}. On reading, `version` and (of a
/// micro-batch) `group` may be absent and then mean what they mean in the text. Throws InputError with `file`
/// and the pointer.
[[nodiscard]] Json to_json(const ScheduleProgram& program);
[[nodiscard]] ScheduleProgram program_from_json(const Json& json, const std::string& file);

}  // namespace stagecraft
