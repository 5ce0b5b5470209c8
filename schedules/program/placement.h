#pragma once

// Which ranks hold which stage, and what follows from it.

#include "schedules/program/action.h"

#include <vector>

namespace stagecraft {

/// Which ranks hold which stage: `ranks[stage]` are the stage's replicas in order. A rank may appear under
/// several stages (virtual stages). Micro-batches go round-robin: replica = micro-batch mod replicas
/// (PipeDream's 1F1B-RR, SOSP'19).
struct Placement {
  std::vector<std::vector<Rank>> ranks{};

  [[nodiscard]] int stages() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] int world() const;  ///< number of ranks: the highest one plus one
  [[nodiscard]] int replicas(StageId stage) const { return static_cast<int>(ranks[stage.index()].size()); }
  [[nodiscard]] bool replicated() const;  ///< some stage has several ranks
  [[nodiscard]] Rank rank_of(StageId stage, MicroBatch micro_batch) const;
  [[nodiscard]] std::vector<StageId> stages_of(Rank rank) const;  ///< in ascending order
  /// The same of every rank, in one walk: programs have thousands.
  [[nodiscard]] std::vector<std::vector<StageId>> stages_by_rank() const;
  /// One rank per stage, in order.
  [[nodiscard]] static Placement straight(int stages);
  /// Virtual stages in rounds: stage s on rank s mod `ranks` (Megatron-LM, arXiv 2104.04473, section 2.2).
  [[nodiscard]] static Placement looped(int ranks, int virtual_stages);
  /// Virtual stages down the ranks and up again: the last stage of one pass shares its rank with the first of
  /// the next; with two passes a V (arXiv 2405.15362, section 3).
  [[nodiscard]] static Placement zigzag(int ranks, int virtual_stages);
  bool operator==(const Placement&) const = default;
};

/// How many of so many micro-batches one of `replicas` has.
[[nodiscard]] constexpr int own_count(int micro_batches, int replica, int replicas) {
  return micro_batches > replica ? (micro_batches - replica + replicas - 1) / replicas : 0;
}

/// A stage on one of its ranks, with its own `count` micro-batches: replica, replica + replicas, ...
struct StageReplica {
  StageId stage{};
  Rank rank{};
  int replica = 0;
  int replicas = 1;
  int count = 0;

  /// The k-th of its own.
  [[nodiscard]] MicroBatch micro_batch(int k) const { return MicroBatch{replica + k * replicas}; }
};
/// All of them, in stage order, then replica order.
[[nodiscard]] std::vector<StageReplica> stage_replicas(const Placement& placement, int micro_batches);

/// How stages lie on ranks; `Placement::looped` and `zigzag` say which stage where.
enum class PlacementKind : std::uint8_t { straight, loop, v };

template <>
inline constexpr std::array enum_names<PlacementKind>{"straight", "loop", "v"};

/// A loop or V placement: `ranks` positions hold `virtual_stages` stages each. With replicas, all stages are
/// equally wide and the k-th replicas of all of them are a pipeline of their own, with every `replicas`-th
/// micro-batch.
struct VirtualStages {
  int ranks = 1;
  int virtual_stages = 1;
  int replicas = 1;
  PlacementKind kind = PlacementKind::loop;

  /// The stage that `position` holds as its `chunk`-th.
  [[nodiscard]] StageId stage(int position, int chunk) const {
    const bool back = kind == PlacementKind::v && chunk % 2 == 1;
    return StageId{chunk * ranks + (back ? ranks - 1 - position : position)};
  }
};

/// Reads such a placement, a V of two stages per rank; throws InputError naming `schedule` and the first stage
/// that is out of place.
[[nodiscard]] VirtualStages virtual_stages(const Placement& placement, PlacementKind kind,
                                           const std::string& schedule);

/// Whether all stages have several replicas, as many each, and every rank is the same replica of all it holds: then
/// the k-th replicas of all stages are a pipeline of their own, with every `replicas`-th micro-batch, and
/// pipelines meet in collectives and loss reports only.
[[nodiscard]] bool has_equal_pipelines(const Placement& placement);

/// One of these pipelines.
struct Pipeline {
  Placement placement{};      ///< one rank per stage, numbered from 0 on as stages first name them
  std::vector<Rank> ranks{};  ///< of the whole, per rank of `placement`
};
/// Requires `has_equal_pipelines(whole)`.
[[nodiscard]] Pipeline pipeline_of(const Placement& whole, int replica);

/// Between which ranks a transfer goes: an activation's and a gradient's of the stages that hold the
/// micro-batch, a loss's from a replica of the last stage to the one that reports.
[[nodiscard]] Rank sender_of(const Placement& placement, const Tag& tag);
[[nodiscard]] Rank receiver_of(const Placement& placement, const Tag& tag);

}  // namespace stagecraft
