#pragma once

// What a search for an order needs to know, looked up once: who holds what, how long everything takes and how
// many bytes it keeps. One synchronous step. Recomputes are no choice of the search: each belongs to the
// input part that it stands before. Orders are the only thing that is searched for: forwards of a replica go
// in micro-batch order, and so do its backwards or their input and weight parts.

#include "schedules/costs/costs.h"
#include "schedules/memory/held.h"
#include "schedules/program/orders.h"
#include "schedules/program/placement.h"
#include "schedules/program/recompute.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft::synthesis {

/// Times are seconds on the replica's rank.
struct TimedReplica : StageReplica {
  double forward = 0;
  double backward = 0;
  double input_part = 0;
  double weight_part = 0;
  double step = 0;
};

/// What each moment changes in the memory of the rank that has a micro-batch of a stage.
struct MicroBatchMemory {
  Situation here;
  MomentDeltas deltas;
};

class Problem {
 public:
  /// Keeps no reference. `costs` has an entry for every stage. `priced_as` [rank]: whose speed and links in `costs`
  /// are its own; empty: each its own. `may_go_on`: whether ranks go on from step to step where the placement and
  /// `clip` allow it. `gradient_from`: stages before it have no backward, so no gradient comes to them.
  Problem(const Placement& placement, int micro_batches, bool clip, const CostTable& costs,
          std::optional<Bytes> capacity, RecomputeSettings recompute = {}, std::vector<Rank> priced_as = {},
          bool may_go_on = true, StageId gradient_from = StageId{0});

  [[nodiscard]] const Placement& placement() const { return placement_; }
  [[nodiscard]] const CostTable& costs() const { return costs_; }
  [[nodiscard]] const StageCosts& costs(StageId stage) const { return costs_.stages[stage.index()]; }
  [[nodiscard]] std::optional<Bytes> capacity() const { return capacity_; }
  [[nodiscard]] bool clip() const { return clip_; }
  /// Whether ranks begin the next step when they have ended their own list, wherever the others are.
  [[nodiscard]] bool goes_on() const { return goes_on_; }
  [[nodiscard]] StageId gradient_from() const { return gradient_from_; }
  [[nodiscard]] const RecomputeSettings& recompute() const { return recompute_; }
  [[nodiscard]] const std::vector<Rank>& priced_as() const { return priced_as_; }
  [[nodiscard]] bool recomputed(StageId stage, MicroBatch micro_batch) const {
    return recomputes(setting_of(recompute_, stage), micro_batch, placement_.replicas(stage), micro_batches_);
  }
  /// Of a stage, without what differs between its micro-batches.
  [[nodiscard]] Situation situation(StageId stage) const {
    return {.first = stage.value == 0, .last = stage == last_stage()};
  }
  [[nodiscard]] const MicroBatchMemory& memory(StageId stage, MicroBatch micro_batch) const {
    const std::size_t at = stage.index() * to_size(micro_batches_) + micro_batch.index();
    return memory_[stage.index()][situation_[at]];
  }
  [[nodiscard]] int stages() const { return placement_.stages(); }
  [[nodiscard]] int ranks() const { return world_; }
  [[nodiscard]] int micro_batches() const { return micro_batches_; }
  [[nodiscard]] StageId last_stage() const { return StageId{stages() - 1}; }
  [[nodiscard]] Rank printing_rank() const { return placement_.ranks[0][0]; }

  [[nodiscard]] const std::vector<TimedReplica>& replicas() const { return replicas_; }
  [[nodiscard]] std::size_t replica_of(StageId stage, MicroBatch micro_batch) const {
    return first_replica_[stage.index()] + micro_batch.index() % placement_.ranks[stage.index()].size();
  }
  [[nodiscard]] const TimedReplica& replica(StageId stage, MicroBatch micro_batch) const {
    return replicas_[replica_of(stage, micro_batch)];
  }
  /// Stage replicas of a rank, in stage order.
  [[nodiscard]] const std::vector<std::size_t>& replicas_of(Rank rank) const {
    return replicas_of_rank_[rank.index()];
  }
  /// Whether a micro-batch goes from one of these neighbouring stages to the other on one rank.
  [[nodiscard]] bool hand_off(StageId a, StageId b, MicroBatch micro_batch) const {
    return replica(a, micro_batch).rank == replica(b, micro_batch).rank;
  }

  /// Without the recompute before an input part.
  [[nodiscard]] double seconds(const Compute& compute) const;
  /// Of the recompute before the micro-batch's input part; 0 where there is none.
  [[nodiscard]] double recompute_seconds(StageId stage, MicroBatch micro_batch) const {
    return recomputed(stage, micro_batch) ? replica(stage, micro_batch).forward : 0;
  }
  /// Of the activation into `stage`, or of the gradient into it. 0 for a hand-off.
  [[nodiscard]] double activation_seconds(StageId stage, MicroBatch micro_batch) const {
    return transfer_seconds(stage.value - 1, stage, micro_batch, costs(stage).input);
  }
  [[nodiscard]] double gradient_seconds(StageId stage, MicroBatch micro_batch) const {
    if (stage < gradient_from_) return 0;
    return transfer_seconds(stage.value + 1, stage, micro_batch, costs(stage).output);
  }
  [[nodiscard]] double loss_seconds(Rank from) const;
  [[nodiscard]] std::size_t computations() const;  ///< of an order with every backward in two parts

 private:
  void find_memory();
  [[nodiscard]] Rank priced(Rank rank) const { return priced_as_.empty() ? rank : priced_as_[rank.index()]; }
  [[nodiscard]] double transfer_seconds(int from, StageId to, MicroBatch micro_batch, Bytes bytes) const;

  Placement placement_;
  CostTable costs_;
  std::optional<Bytes> capacity_;
  RecomputeSettings recompute_;
  std::vector<Rank> priced_as_;
  bool clip_;
  bool goes_on_;
  StageId gradient_from_;
  int micro_batches_;
  int world_;
  std::vector<TimedReplica> replicas_;
  std::vector<std::size_t> first_replica_;  // per stage
  std::vector<std::vector<std::size_t>> replicas_of_rank_;
  std::vector<std::array<MicroBatchMemory, 8>> memory_;  // per stage: in every situation it can be in
  std::vector<std::uint8_t> situation_;                  // which of those, per (stage, micro-batch)
};

/// Whether two computations of one rank must stay in the order they are in: one needs the other, or they are
/// the same part of one stage's work, which goes in micro-batch order.
[[nodiscard]] constexpr bool ordered(const Compute& a, const Compute& b) {
  const bool both_forward = a.op == Op::forward && b.op == Op::forward;
  const bool both_input = is_input_part(a.op) && is_input_part(b.op);
  if (a.stage == b.stage) {
    return a.micro_batch == b.micro_batch || both_forward || both_input ||
           (is_weight_part(a.op) && is_weight_part(b.op));
  }
  const int apart = a.stage.value - b.stage.value;
  return a.micro_batch == b.micro_batch && (apart == 1 || apart == -1) && (both_forward || both_input);
}

/// Whether every rank's order has every forward and backward (or both parts) of its stages once, each behind
/// what it needs of the same rank, and each part of a stage's work in micro-batch order.
[[nodiscard]] bool well_formed(const Problem& problem, const Orders& orders);

}  // namespace stagecraft::synthesis
