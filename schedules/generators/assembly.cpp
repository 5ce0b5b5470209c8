#include "schedules/generators/assembly.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {

ProgramHeader make_header(const char* schedule, SegmentKind kind, const ScheduleRequest& request) {
  ProgramHeader header{schedule, kind, request.placement, request.group_sizes};
  validate_header(header);
  return header;
}

void require_one_group(const ProgramHeader& header) {
  if (header.groups() != 1) {
    throw InputError(fmt::format("{} is synchronous: a program is one step with one group, not {}",
                                 header.schedule, header.groups()));
  }
}

ReplicaList::ReplicaList(const ProgramHeader& header, const std::vector<Group>& groups, StageId stage,
                         int replica)
    : header_(header),
      groups_(groups),
      stage_(stage),
      replica_(replica),
      width_(header.placement.width(stage)),
      rank_(header.placement.ranks[stage.index()][static_cast<std::size_t>(replica)]),
      count_(std::max(0, (static_cast<int>(groups.size()) - replica + width_ - 1) / width_)),
      read_(static_cast<std::size_t>(count_)) {}

void ReplicaList::forward(int k, Version version) {
  const MicroBatch mb = micro_batch(k);
  const Group group = groups_[mb.index()];
  const bool last = stage_.value == header_.placement.stages() - 1;
  if (stage_.value == 0 || last) {
    actions_.push_back({.op = Op::load, .stage = stage_, .micro_batch = mb, .group = group});
  }
  actions_.push_back(
      {.op = Op::forward, .stage = stage_, .micro_batch = mb, .version = version, .group = group});
  read_[static_cast<std::size_t>(k)] = version;
  const bool ends_group = k + 1 == count_ || groups_[micro_batch(k + 1).index()] != group;
  if (last && ends_group && rank_ != header_.placement.ranks[0][0]) {
    actions_.push_back({.op = Op::report_loss, .stage = stage_, .group = group});
  }
}

void ReplicaList::backward(int k) {
  const MicroBatch mb = micro_batch(k);
  actions_.push_back({.op = Op::backward,
                      .stage = stage_,
                      .micro_batch = mb,
                      .version = read_[static_cast<std::size_t>(k)],
                      .group = groups_[mb.index()]});
}

void ReplicaList::step(Group group) {
  if (width_ > 1) actions_.push_back({.op = Op::reduce, .stage = stage_, .group = group});
  actions_.push_back({.op = Op::step, .stage = stage_, .version = Version{group.value}, .group = group});
  if (stage_.value == 0 && replica_ == 0) {
    actions_.push_back({.op = Op::report_loss, .stage = stage_, .group = group});
  }
}

ReplicaLists make_lists(const ProgramHeader& header, const std::vector<Group>& groups) {
  ReplicaLists lists;
  for (int s = 0; s < header.placement.stages(); ++s) {
    for (int r = 0; r < header.placement.width(StageId{s}); ++r) {
      lists.emplace_back(header, groups, StageId{s}, r);
    }
  }
  return lists;
}

void append_flush(ScheduleProgram& program, bool clip) {
  const Group group{0};
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    auto& list = program.ranks[r];
    // Ascending on every rank, so that ranks which share several stages reduce them in one order.
    const auto stages = program.placement.stages_of(Rank{r});
    for (const StageId stage : stages) {
      if (program.placement.width(stage) > 1) {
        list.push_back({.op = Op::reduce, .stage = stage, .group = group});
      }
    }
    if (clip) list.push_back({.op = Op::agree_norm, .group = group});
    for (const StageId stage : stages) {
      list.push_back({.op = Op::step, .stage = stage, .version = Version{0}, .group = group});
    }
    if (Rank{r} == program.placement.ranks[0][0]) {
      list.push_back({.op = Op::report_loss, .stage = StageId{0}, .group = group});
    }
  }
}

int warm_up_depth(const Placement& placement, StageId stage) {
  int from_here_on = 0;
  for (int s = stage.value; s < placement.stages(); ++s) from_here_on += placement.width(StageId{s});
  return (from_here_on - 1) / placement.width(stage);
}

int most_micro_batches(const Placement& placement, StageId stage, int micro_batches) {
  const int width = placement.width(stage);
  return (micro_batches + width - 1) / width;
}

}  // namespace stagecraft
