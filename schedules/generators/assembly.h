#pragma once

// What all generators share. A schedule decides one thing only: in which order a replica of a stage does its
// forwards and backwards, and which version each reads. Everything around that is the same for all and is
// made here and in step_program.h: data loads, reductions, the norm agreement, steps, loss reports, and the
// merge of several stages onto one rank.

#include "stagecraft/schedules/generators/schedule.h"
#include "stagecraft/schedules/list_scheduling/list_scheduler.h"
#include "stagecraft/schedules/program/step_program.h"

#include <vector>

namespace stagecraft {

/// make_header() of what is asked for, to train.
[[nodiscard]] ProgramHeader training_header(const char* schedule, const ScheduleRequest& request);
/// What a list scheduler needs of it.
[[nodiscard]] WorkloadRequest workload_request(const ScheduleRequest& request);

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

/// Forwards a replica of `stage` makes before its first backward under 1F1B: floor((ranks - 1 - ranks before
/// the stage) / ranks of the stage), the SOSP'19 rule for replicated stages; p - 1 - s without replication.
[[nodiscard]] int warm_up_depth(const Placement& placement, StageId stage);

}  // namespace stagecraft
