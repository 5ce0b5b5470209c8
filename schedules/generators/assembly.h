#pragma once

// What all generators share. A schedule decides one thing only: in which order a replica of a stage does its
// forwards and backwards, and which version each reads. Everything around that is the same for all and is
// made here: data loads, reductions, the norm agreement, steps, loss reports, and the merge of several stages
// onto one rank.

#include "schedules/schedule.h"

#include <vector>

namespace stagecraft {

/// The header of a generated program. Throws InputError for a request that cannot be (see validate_header).
[[nodiscard]] ProgramHeader make_header(const char* schedule, SegmentKind kind,
                                        const ScheduleRequest& request);

/// Throws InputError unless the request has one group: a synchronous step.
void require_one_group(const ProgramHeader& header);

/// Builds the list of one replica of one stage. Its own micro-batches are replica, replica + width, ...; they
/// are spoken of by their position k among those.
class ReplicaList {
 public:
  ReplicaList(const ProgramHeader& header, const std::vector<Group>& groups, StageId stage, int replica);

  [[nodiscard]] StageId stage() const { return stage_; }
  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] int count() const { return count_; }  ///< own micro-batches
  [[nodiscard]] MicroBatch micro_batch(int k) const { return MicroBatch{replica_ + k * width_}; }

  /// Forward of the k-th own micro-batch. On the first and the last stage a load stands before it; on the
  /// last stage a loss report follows the last one of a group, unless this rank is the one that prints.
  void forward(int k, Version version);
  /// Backward of the k-th own micro-batch, with the version its forward read.
  void backward(int k);
  /// Reduction over the replicas (where there are several), step of `group`, and on stage 0's first replica
  /// the printed report.
  void step(Group group);

  [[nodiscard]] std::vector<Action>& actions() { return actions_; }

 private:
  const ProgramHeader& header_;
  const std::vector<Group>& groups_;
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
[[nodiscard]] ReplicaLists make_lists(const ProgramHeader& header, const std::vector<Group>& groups);

/// One list a rank. Where a rank holds several stages their lists are merged in the order in which a machine
/// that takes one tick a forward or backward could first run them, backwards and later stages first: such an
/// order needs no more than the lists' own, so it cannot deadlock where they do not.
[[nodiscard]] std::vector<std::vector<Action>> merge(const ProgramHeader& header, ReplicaLists& lists);

/// Ends a synchronous step on every rank: reductions, norm agreement (`clip`), steps, the printed report.
void append_flush(ScheduleProgram& program, bool clip);

/// Forwards a replica of `stage` makes before its first backward under 1F1B: floor((ranks - 1 - ranks before
/// the stage) / ranks of the stage), the SOSP'19 rule for replicated stages; p - 1 - s without replication.
[[nodiscard]] int warm_up_depth(const Placement& placement, StageId stage);

/// Own micro-batches of the stage's first replica, which has the most.
[[nodiscard]] int most_micro_batches(const Placement& placement, StageId stage, int micro_batches);

// The registered schedules, one file each.
[[nodiscard]] Schedule fill_drain_schedule();
[[nodiscard]] Schedule one_f_one_b_schedule();
[[nodiscard]] Schedule pipedream_schedule();

}  // namespace stagecraft
