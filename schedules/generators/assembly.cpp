#include "stagecraft/schedules/generators/assembly.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace stagecraft {

ProgramHeader training_header(const std::string& schedule, const ScheduleRequest& request) {
  return make_header(schedule, SegmentKind::train, request.placement, request.group_sizes);
}

WorkloadRequest workload_request(const ScheduleRequest& request) {
  return {.placement = request.placement,
          .micro_batches = std::accumulate(request.group_sizes.begin(), request.group_sizes.end(), 0),
          .costs = request.costs,
          .recompute = request.recompute};
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
