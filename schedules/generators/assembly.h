#pragma once

// What all generators share. A schedule decides one thing only: in which order a replica of a stage does its
// forwards and backwards, and which version each reads. Everything around that is the same for all and is
// made here: data loads, reductions, the norm agreement, steps, loss reports, and the merge of several stages
// onto one rank.

#include "schedules/schedule.h"

#include <vector>

namespace stagecraft {

/// The header of a generated program. Throws InputError for a request that cannot be (see validate_header),
/// or that makes more than kMaxActions actions.
[[nodiscard]] ProgramHeader make_header(const char* schedule, SegmentKind kind,
                                        const ScheduleRequest& request);

/// Appends forwards and backwards to a rank's list with what belongs to them: on the first and the last stage
/// a load before the forward, on the last stage a loss report after the last forward of a group that a
/// replica has, unless its rank is the one that prints.
class ComputeWriter {
 public:
  /// Keeps a reference to `header`.
  explicit ComputeWriter(const ProgramHeader& header);

  /// `op` is a forward, a backward or one of its parts, or a recompute.
  void write(std::vector<Action>& list, Op op, StageId stage, MicroBatch micro_batch, Version version) const;
  [[nodiscard]] Group group_of(MicroBatch micro_batch) const { return groups_[micro_batch.index()]; }

 private:
  const ProgramHeader& header_;
  std::vector<Group> groups_;
};

/// One forward, backward, backward_input, backward_weight or recompute.
struct Compute {
  Op op = Op::forward;
  StageId stage{};
  MicroBatch micro_batch{};
};

/// A synchronous schedule decides one thing: in which order every rank computes (`orders[rank]`). The rest
/// follows.
[[nodiscard]] ScheduleProgram synchronous_program(ProgramHeader header,
                                                  const std::vector<std::vector<Compute>>& orders, bool clip);

/// A loop or V placement: `ranks` positions hold `virtual_stages` stages each. With replicas, all stages are
/// equally wide and the k-th replicas of all of them are a pipeline of their own, with every width-th
/// micro-batch.
struct VirtualStages {
  int ranks = 1;
  int virtual_stages = 1;
  int width = 1;
  PlacementKind kind = PlacementKind::loop;

  /// The stage that `position` holds as its `chunk`-th.
  [[nodiscard]] StageId stage(int position, int chunk) const {
    const bool back = kind == PlacementKind::v && chunk % 2 == 1;
    return StageId{chunk * ranks + (back ? ranks - 1 - position : position)};
  }
};

/// Reads such a placement, a V of two stages a rank; throws InputError naming `schedule` and the first stage
/// that is out of place.
[[nodiscard]] VirtualStages virtual_stages(const Placement& placement, PlacementKind kind,
                                           const char* schedule);

/// Builds the list of one replica of one stage. Its own micro-batches are replica, replica + width, ...; they
/// are spoken of by their position k among those.
class ReplicaList {
 public:
  /// Keeps references to both.
  ReplicaList(const ProgramHeader& header, const ComputeWriter& writer, StageId stage, int replica);

  [[nodiscard]] StageId stage() const { return stage_; }
  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] int count() const { return count_; }  ///< own micro-batches
  [[nodiscard]] MicroBatch micro_batch(int k) const { return MicroBatch{replica_ + k * width_}; }

  /// Forward of the k-th own micro-batch.
  void forward(int k, Version version);
  /// Backward of the k-th own micro-batch, with the version its forward read.
  void backward(int k);
  /// Reduction over the replicas (where there are several), step of `group`, and on stage 0's first replica
  /// the printed report.
  void step(Group group);

  [[nodiscard]] std::vector<Action>& actions() { return actions_; }

 private:
  const ComputeWriter& writer_;
  StageId stage_;
  int replica_;
  int width_;
  Rank rank_;
  int count_;
  std::vector<Version> read_;
  std::vector<Action> actions_;
};

/// One list a (stage, replica), in stage order, then replica order.
using ReplicaLists = std::vector<ReplicaList>;
[[nodiscard]] ReplicaLists make_lists(const ProgramHeader& header, const ComputeWriter& writer);

/// One list a rank. Where a rank holds several stages their lists are merged in the order in which a machine
/// that takes one tick a forward or backward could first run them, backwards and later stages first: such an
/// order needs no more than the lists' own, so it cannot deadlock where they do not.
[[nodiscard]] std::vector<std::vector<Action>> merge(const ProgramHeader& header, ReplicaLists& lists);

/// Ends a synchronous step on every rank: reductions, norm agreement (`clip`), steps, the printed report.
void append_flush(ScheduleProgram& program, bool clip);

/// Forwards a replica of `stage` makes before its first backward under 1F1B: floor((ranks - 1 - ranks before
/// the stage) / ranks of the stage), the SOSP'19 rule for replicated stages; p - 1 - s without replication.
[[nodiscard]] int warm_up_depth(const Placement& placement, StageId stage);

// The registered schedules, one file each.
[[nodiscard]] Schedule fill_drain_schedule();
[[nodiscard]] Schedule one_f_one_b_schedule();
[[nodiscard]] Schedule interleaved_1f1b_schedule();
[[nodiscard]] Schedule looped_bfs_schedule();
[[nodiscard]] Schedule zb_h1_schedule();
[[nodiscard]] Schedule zb_h2_schedule();
[[nodiscard]] Schedule interleaved_zb_schedule();
[[nodiscard]] Schedule zb_v_schedule();
[[nodiscard]] Schedule v_half_schedule();
[[nodiscard]] Schedule v_min_schedule();
[[nodiscard]] Schedule auto_schedule();
[[nodiscard]] Schedule pipedream_schedule();
[[nodiscard]] Schedule two_bw_schedule();

}  // namespace stagecraft
