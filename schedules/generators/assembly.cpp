#include "schedules/generators/assembly.h"

#include "schedules/program/consecutive.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace stagecraft {

ProgramHeader training_header(const std::string& schedule, const ScheduleRequest& request) {
  return make_header(schedule, SegmentKind::train, request.placement, request.group_sizes);
}

WorkloadRequest workload_request(const ScheduleRequest& request) {
  const int micro_batches = std::accumulate(request.group_sizes.begin(), request.group_sizes.end(), 0);
  return {.placement = request.placement,
          .micro_batches = micro_batches,
          .costs = request.costs,
          .recompute = request.recompute,
          .priced_as = request.priced_as,
          .goes_on = request.goes_on && !request.clip && can_be_followed(request.placement, micro_batches)};
}

ScheduleRequest pipeline_request(const ScheduleRequest& whole, int replica) {
  Pipeline pipeline = pipeline_of(whole.placement, replica);
  ScheduleRequest one = whole;
  one.placement = std::move(pipeline.placement);
  const int replicas = whole.placement.replicas(StageId{0});
  one.group_sizes = {own_count(whole.group_sizes.front(), replica, replicas)};
  one.goes_on = workload_request(whole).goes_on;
  if (!whole.priced_as.empty()) {
    for (Rank& rank : pipeline.ranks) rank = whole.priced_as[rank.index()];
  }
  one.priced_as = std::move(pipeline.ranks);
  return one;
}

ScheduleProgram program_by_time(const std::string& schedule, const ScheduleRequest& request,
                                const std::function<Orders(const ScheduleRequest&)>& order) {
  ProgramHeader header = training_header(schedule, request);
  if (!has_equal_pipelines(request.placement))
    return synchronous_program(std::move(header), order(request), request.clip);
  struct Ordered {
    Workload workload;
    Orders orders;
  };
  std::vector<Ordered> known;
  Orders orders(to_size(request.placement.world()));
  const int replicas = request.placement.replicas(StageId{0});
  for (int k = 0; k < std::min(replicas, header.micro_batches()); ++k) {
    const ScheduleRequest one = pipeline_request(request, k);
    Workload workload = workload_of(workload_request(one));
    auto like = std::ranges::find(known, workload, &Ordered::workload);
    if (like == known.end()) like = known.insert(like, {std::move(workload), order(one)});
    const std::vector<Rank> ranks = pipeline_of(request.placement, k).ranks;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      Order& of_rank = orders[ranks[r].index()];
      of_rank = like->orders[r];
      for (Compute& compute : of_rank)
        compute.micro_batch = MicroBatch{compute.micro_batch.value * replicas + k};
    }
  }
  return synchronous_program(std::move(header), orders, request.clip);
}

ReplicaList::ReplicaList(const ComputeWriter& writer, const StageReplica& at)
    : writer_(writer), at_(at), read_(to_size(at.count)) {}

void ReplicaList::forward(int k, Version version) {
  writer_.write(actions_, Op::forward, at_.stage, micro_batch(k), version);
  read_[to_size(k)] = version;
}

void ReplicaList::backward(int k) {
  writer_.write(actions_, Op::backward, at_.stage, micro_batch(k), read_[to_size(k)]);
}

void ReplicaList::step(Group group) {
  if (at_.replicas > 1) actions_.push_back({.op = Op::reduce, .stage = at_.stage, .group = group});
  actions_.push_back({.op = Op::step, .stage = at_.stage, .version = Version{group.value}, .group = group});
  if (at_.stage.value == 0 && at_.replica == 0) {
    actions_.push_back({.op = Op::report_loss, .stage = at_.stage, .group = group});
  }
}

ScheduleProgram flushed_program(ProgramHeader header, bool clip,
                                const std::function<int(const ReplicaList&)>& ahead) {
  ScheduleProgram program = merged_program(std::move(header), [&](ReplicaList& list) {
    const int first = std::min(list.count(), ahead(list));
    for (int k = 0; k < first; ++k) list.forward(k, Version{0});
    for (int k = 0; k < list.count(); ++k) {
      if (k + first < list.count()) list.forward(k + first, Version{0});
      list.backward(k);
    }
  });
  append_flush(program, clip);
  return program;
}

int warm_up_depth(const Placement& placement, StageId stage) {
  int from_here_on = 0;
  for (int s = stage.value; s < placement.stages(); ++s) from_here_on += placement.replicas(StageId{s});
  return (from_here_on - 1) / placement.replicas(stage);
}

}  // namespace stagecraft
