#include "schedules/generators/assembly.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

/// Before anything is sized by them: what is generated would be no use to the readers.
void check_actions(const ProgramHeader& header) {
  const bool trains = header.kind == SegmentKind::train;
  const std::int64_t computes = std::int64_t{header.placement.stages()} * header.micro_batches();
  const std::int64_t least = computes * (trains ? 2 : 1);
  if (least <= kMaxActions) return;
  throw InputError(
      fmt::format("{} stages and {} micro-batches make at least {} actions, and a program has at most {}; {}",
                  header.placement.stages(), header.micro_batches(), least, kMaxActions,
                  trains ? "make the micro-batches fewer and larger"
                         : "validate on fewer samples, or in larger "
                           "micro-batches"));
}

}  // namespace

ProgramHeader make_header(const char* schedule, SegmentKind kind, const ScheduleRequest& request) {
  ProgramHeader header{schedule, kind, request.placement, request.group_sizes};
  validate_header(header);
  check_actions(header);
  return header;
}

ComputeWriter::ComputeWriter(const ProgramHeader& header)
    : header_(header), groups_(header.groups_by_micro_batch()) {}

void ComputeWriter::write(std::vector<Action>& list, Op op, StageId stage, MicroBatch micro_batch,
                          Version version) const {
  const Group group = group_of(micro_batch);
  const Action action{
      .op = op, .stage = stage, .micro_batch = micro_batch, .version = version, .group = group};
  if (op != Op::forward) {
    list.push_back(action);
    return;
  }
  const Placement& placement = header_.placement;
  const bool last = stage.value == placement.stages() - 1;
  if (stage.value == 0 || last) {
    list.push_back({.op = Op::load, .stage = stage, .micro_batch = micro_batch, .group = group});
  }
  list.push_back(action);
  const std::size_t next = micro_batch.index() + static_cast<std::size_t>(placement.width(stage));
  const bool ends_group = next >= groups_.size() || groups_[next] != group;
  if (last && ends_group && placement.rank_of(stage, micro_batch) != placement.ranks[0][0]) {
    list.push_back({.op = Op::report_loss, .stage = stage, .group = group});
  }
}

ScheduleProgram synchronous_program(ProgramHeader header, const std::vector<std::vector<Compute>>& orders,
                                    bool clip) {
  ScheduleProgram program{std::move(header), {}};
  const ComputeWriter writer(program);
  for (const auto& order : orders) {
    auto& list = program.ranks.emplace_back();
    list.reserve(order.size());
    for (const Compute& compute : order) {
      writer.write(list, compute.op, compute.stage, compute.micro_batch, Version{0});
    }
  }
  append_flush(program, clip);
  return program;
}

VirtualStages virtual_stages(const Placement& placement, PlacementKind kind, const char* schedule) {
  VirtualStages shape{.kind = kind};
  const auto& ranks = placement.ranks;
  // The first pass ends where a rank comes again: in a loop the first, in a V the last.
  const auto begins_next_pass = [&](int s) {
    return ranks[static_cast<std::size_t>(s)] ==
           ranks[kind == PlacementKind::v ? static_cast<std::size_t>(s - 1) : 0];
  };
  shape.ranks = 1;
  while (shape.ranks < placement.stages() && !begins_next_pass(shape.ranks)) ++shape.ranks;
  shape.virtual_stages = std::max(1, placement.stages() / shape.ranks);
  shape.width = ranks.empty() ? 1 : placement.width(StageId{0});
  if (kind == PlacementKind::v && placement.stages() != 2 * shape.ranks) {
    throw InputError(fmt::format(
        "{} wants two stages on every rank, in a V: down the ranks and back up. Of these {} stages "
        "the first pass goes over {} ranks",
        schedule, placement.stages(), shape.ranks));
  }
  const Placement pattern = kind == PlacementKind::v ? Placement::zigzag(shape.ranks, shape.virtual_stages)
                                                     : Placement::looped(shape.ranks, shape.virtual_stages);
  for (int s = 0; s < placement.stages(); ++s) {
    const auto at = static_cast<std::size_t>(s);
    if (s < pattern.stages() && ranks[at] == ranks[pattern.ranks[at].front().index()] &&
        placement.width(StageId{s}) == shape.width) {
      continue;
    }
    throw InputError(
        fmt::format("{} wants its stages in a {}, equally wide, each pass over all ranks: stage {} is out of "
                    "place",
                    schedule, kind == PlacementKind::v ? "V" : "loop", s));
  }
  return shape;
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

}  // namespace stagecraft
