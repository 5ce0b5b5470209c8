#pragma once

// What all generators share. A schedule decides one thing only: in which order a replica of a stage does its
// forwards and backwards, and which version each reads. Everything around that is the same for all and is
// made here and in step_program.h: data loads, reductions, the norm agreement, steps, loss reports, and the
// merge of several stages onto one rank.

#include "schedules/generators/schedule.h"
#include "schedules/list_scheduling/list_scheduler.h"
#include "schedules/program/step_program.h"

#include <functional>
#include <vector>

namespace stagecraft {

/// make_header() of what is asked for, to train.
[[nodiscard]] ProgramHeader training_header(const std::string& schedule, const ScheduleRequest& request);
/// What a list scheduler needs of it.
[[nodiscard]] WorkloadRequest workload_request(const ScheduleRequest& request);

/// The program of a schedule that orders by time: `order` says what every rank computes. Pipelines of equally
/// wide stages meet only where no order matters, so each is ordered by itself, and those with equal times and as
/// many micro-batches alike: `order` is asked once for all of them, with one rank per stage.
[[nodiscard]] ScheduleProgram program_by_time(const std::string& schedule, const ScheduleRequest& request,
                                              const std::function<Orders(const ScheduleRequest&)>& order);
/// What it is asked for one pipeline, with the group's micro-batches that are its own: at least one.
[[nodiscard]] ScheduleRequest pipeline_request(const ScheduleRequest& whole, int replica);

/// Builds the list of one replica of one stage. Its own micro-batches are spoken of by their position k among
/// those.
class ReplicaList {
 public:
  /// Keeps a reference to `writer`.
  ReplicaList(const ComputeWriter& writer, const StageReplica& at);

  [[nodiscard]] StageId stage() const { return at_.stage; }
  [[nodiscard]] Rank rank() const { return at_.rank; }
  [[nodiscard]] int count() const { return at_.count; }  ///< own micro-batches
  [[nodiscard]] MicroBatch micro_batch(int k) const { return at_.micro_batch(k); }

  void forward(int k, Version version);
  /// Backward of the k-th own micro-batch, with the version its forward read.
  void backward(int k);
  /// Reduction over the replicas (where there are several), step of `group`, and on stage 0's first replica
  /// the printed report.
  void step(Group group);

  [[nodiscard]] std::vector<Action>& actions() { return actions_; }

 private:
  const ComputeWriter& writer_;
  StageReplica at_;
  std::vector<Version> read_;
  std::vector<Action> actions_;
};

/// A program whose lists `fill` writes, one a (stage, replica), in stage order, then replica order. Where a
/// rank holds several stages their lists are merged in the order in which a machine that takes one tick a
/// forward or backward could first run them, backwards and later stages first: such an order needs no more
/// than the lists' own, so it cannot deadlock where they do not.
[[nodiscard]] ScheduleProgram merged_program(ProgramHeader header,
                                             const std::function<void(ReplicaList&)>& fill);

/// A synchronous step in which each replica does so many forwards ahead, then a forward and a backward in
/// turn, then the remaining backwards.
[[nodiscard]] ScheduleProgram flushed_program(ProgramHeader header, bool clip,
                                              const std::function<int(const ReplicaList&)>& ahead);

/// Forwards that a replica of `stage` makes before its first backward under 1F1B: floor((ranks - 1 - ranks
/// before the stage) / ranks of the stage), the SOSP'19 rule for replicated stages;
/// p - 1 - s without replication.
[[nodiscard]] int warm_up_depth(const Placement& placement, StageId stage);

}  // namespace stagecraft
