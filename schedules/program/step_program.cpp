#include "schedules/program/step_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace stagecraft {

ProgramHeader make_header(std::string schedule, SegmentKind kind, Placement placement,
                          std::vector<int> group_sizes) {
  ProgramHeader header{std::move(schedule), kind, std::move(placement), std::move(group_sizes)};
  validate_header(header);
  // Before anything is sized by them: what is generated would be no use to the readers.
  const bool trains = kind == SegmentKind::train;
  const std::int64_t least =
      std::int64_t{header.placement.stages()} * header.micro_batches() * (trains ? 2 : 1);
  if (least <= kMaxActions) return header;
  throw InputError(
      fmt::format("{} stages and {} micro-batches make at least {} actions, and a program has at most {}; {}",
                  header.placement.stages(), header.micro_batches(), least, kMaxActions,
                  trains ? "make the micro-batches fewer and larger"
                         : "validate on fewer samples, or in larger micro-batches"));
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
  if (header_.loads(stage)) {
    list.push_back({.op = Op::load, .stage = stage, .micro_batch = micro_batch, .group = group});
  }
  list.push_back(action);
  const std::size_t next = micro_batch.index() + static_cast<std::size_t>(placement.replicas(stage));
  const bool ends_group = next >= groups_.size() || groups_[next] != group;
  if (last && ends_group && placement.rank_of(stage, micro_batch) != placement.ranks[0][0]) {
    list.push_back({.op = Op::report_loss, .stage = stage, .group = group});
  }
}

ScheduleProgram synchronous_program(ProgramHeader header, const Orders& orders, bool clip) {
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

void add_loads(ScheduleProgram& program, const std::vector<StageId>& stages) {
  if (stages.empty()) return;
  program.also_load = stages;
  validate_header(program);
  const std::set<StageId> also(stages.begin(), stages.end());
  for (std::vector<Action>& list : program.ranks) {
    std::vector<Action> with;
    with.reserve(list.size());
    for (const Action& action : list) {
      if (action.op == Op::forward && also.contains(action.stage)) {
        with.push_back({.op = Op::load,
                        .stage = action.stage,
                        .micro_batch = action.micro_batch,
                        .group = action.group});
      }
      with.push_back(action);
    }
    list = std::move(with);
  }
}

void add_ties(ScheduleProgram& program, const std::vector<std::vector<StageId>>& ties) {
  if (ties.empty()) return;
  program.ties = ties;
  validate_header(program);
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    std::set<TieId> held;
    for (const StageId stage : program.placement.stages_of(Rank{r})) {
      for (std::size_t k = 0; k < ties.size(); ++k) {
        if (program.holds(stage, TieId{k})) held.emplace(k);
      }
    }
    std::set<std::pair<TieId, Group>> summed;
    std::vector<Action> with;
    for (const Action& action : program.ranks[r]) {
      const auto uses = [&](TieId tie) {
        return action.op == Op::agree_norm || (action.op == Op::step && program.holds(action.stage, tie));
      };
      // Those before it as well: all ranks sum in the same order, so that none waits for another one's later sum.
      const auto end = std::find_if(held.rbegin(), held.rend(), uses).base();
      for (auto tie = held.begin(); tie != end; ++tie) {
        if (summed.emplace(*tie, action.group).second)
          with.push_back({.op = Op::tie, .group = action.group, .tie = *tie});
      }
      with.push_back(action);
    }
    if (!held.empty()) program.ranks[r] = std::move(with);
  }
}

void add_skips(ScheduleProgram& program, const std::vector<Skip>& skips) {
  program.skips = skips;
  if (!skips.empty()) validate_header(program);
}

void freeze(ScheduleProgram& program, StageId gradient_from) {
  if (gradient_from.value == 0) return;
  program.gradient_from = gradient_from;
  validate_header(program);
  for (std::vector<Action>& list : program.ranks) {
    std::erase_if(list, [&](const Action& action) {
      const bool trains = is_compute(action.op) ? action.op != Op::forward : action.op == Op::step;
      return trains && action.stage < gradient_from;
    });
    for (Action& action : list) {
      if (action.op == Op::forward && action.stage < gradient_from) action.version = Version{0};
    }
  }
}

void append_flush(ScheduleProgram& program, bool clip) {
  const Group group{0};
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    auto& list = program.ranks[r];
    // Ascending on every rank, so that ranks which share several stages reduce them in one order.
    const auto stages = program.placement.stages_of(Rank{r});
    for (const StageId stage : stages) {
      if (program.placement.replicas(stage) > 1) {
        list.push_back({.op = Op::reduce, .stage = stage, .group = group});
      }
    }
    if (clip) list.push_back({.op = Op::agree_norm, .group = group});
    for (const StageId stage : stages) {
      if (program.has_backward(stage))
        list.push_back({.op = Op::step, .stage = stage, .version = Version{0}, .group = group});
    }
    if (Rank{r} == program.placement.ranks[0][0]) {
      list.push_back({.op = Op::report_loss, .stage = StageId{0}, .group = group});
    }
  }
}

void complete(ScheduleProgram& program, StageId gradient_from, const RecomputeSettings& recompute,
              const std::vector<StageId>& also_load, const std::vector<std::vector<StageId>>& ties) {
  freeze(program, gradient_from);
  insert_recomputes(program, recompute);
  add_loads(program, also_load);
  add_ties(program, ties);
}

}  // namespace stagecraft
