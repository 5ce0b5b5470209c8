#include "stagecraft/schedules/generators/assembly.h"

#include <algorithm>
#include <numeric>

namespace stagecraft {
ProgramHeader training_header(const char* schedule, const ScheduleRequest& request) {
  return make_header(schedule, SegmentKind::train, request.placement, request.group_sizes);
}

WorkloadRequest workload_request(const ScheduleRequest& request) {
  return {.placement = request.placement,
          .micro_batches = std::accumulate(request.group_sizes.begin(), request.group_sizes.end(), 0),
          .costs = request.costs,
          .recompute = request.recompute};
}

ReplicaList::ReplicaList(const ProgramHeader& header, const ComputeWriter& writer, StageId stage, int replica)
    : writer_(writer),
      stage_(stage),
      replica_(replica),
      width_(header.placement.width(stage)),
      rank_(header.placement.ranks[stage.index()][static_cast<std::size_t>(replica)]),
      count_(std::max(0, (header.micro_batches() - replica + width_ - 1) / width_)),
      read_(static_cast<std::size_t>(count_)) {}

void ReplicaList::forward(int k, Version version) {
  writer_.write(actions_, Op::forward, stage_, micro_batch(k), version);
  read_[static_cast<std::size_t>(k)] = version;
}

void ReplicaList::backward(int k) {
  writer_.write(actions_, Op::backward, stage_, micro_batch(k), read_[static_cast<std::size_t>(k)]);
}

void ReplicaList::step(Group group) {
  if (width_ > 1) actions_.push_back({.op = Op::reduce, .stage = stage_, .group = group});
  actions_.push_back({.op = Op::step, .stage = stage_, .version = Version{group.value}, .group = group});
  if (stage_.value == 0 && replica_ == 0) {
    actions_.push_back({.op = Op::report_loss, .stage = stage_, .group = group});
  }
}

ReplicaLists make_lists(const ProgramHeader& header, const ComputeWriter& writer) {
  ReplicaLists lists;
  for (int s = 0; s < header.placement.stages(); ++s) {
    for (int r = 0; r < header.placement.width(StageId{s}); ++r) {
      lists.emplace_back(header, writer, StageId{s}, r);
    }
  }
  return lists;
}

int warm_up_depth(const Placement& placement, StageId stage) {
  int from_here_on = 0;
  for (int s = stage.value; s < placement.stages(); ++s) from_here_on += placement.width(StageId{s});
  return (from_here_on - 1) / placement.width(stage);
}

}  // namespace stagecraft
