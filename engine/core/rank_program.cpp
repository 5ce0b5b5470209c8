#include "engine/core/rank_program.h"

#include "schedules/rules/reductions.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace stagecraft {
namespace {

int most_ahead_of(const LoweredProgram& program) {
  int most = 0;
  for (const std::vector<Action>& list : program.ranks) {
    int highest = std::numeric_limits<int>::min();
    for (const Action& action : list) {
      const MicroBatch micro_batch = micro_batch_of(action);
      if (!micro_batch.valid()) continue;
      highest = std::max(highest, micro_batch.value);
      most = std::max(most, highest - micro_batch.value);
    }
  }
  return most;
}

std::vector<GroupFacts> groups_of(const ProgramHeader& header) {
  std::vector<GroupFacts> groups;
  int first = 0;
  for (const int size : header.group_sizes) {
    groups.push_back({first, size});
    first += size;
  }
  return groups;
}

/// That the action itself tells; none for a release, and for what a test planted outside of the program.
Group told_group(const Action& action, const std::vector<Group>& group_of) {
  if (is_transfer(action.op) && action.tag.is_loss()) return action.tag.group();
  if (action.group.valid()) return action.group;
  const MicroBatch micro_batch = micro_batch_of(action);
  const bool known = micro_batch.valid() && micro_batch.index() < group_of.size();
  return known ? group_of[micro_batch.index()] : Group{};
}

bool has_ties(const ProgramHeader& header, StageId stage) {
  for (std::size_t k = 0; k < header.ties.size(); ++k) {
    if (header.holds(stage, TieId{k})) return true;
  }
  return false;
}

StageFacts facts_of(const LoweredProgram& program, const std::vector<Action>& list, StageId stage) {
  StageFacts facts{.id = stage,
                   .last = stage.value + 1 == program.placement.stages(),
                   .loads = program.loads(stage),
                   .versions = version_reads(list, stage)};
  for (const Action& action : list) {
    if (action.op == Op::load && action.stage == stage) facts.loaded.push_back(action.micro_batch);
  }
  if (program.kind == SegmentKind::train) facts.staleness = staleness_of_updates(program, stage);
  return facts;
}

}  // namespace

MicroBatch micro_batch_of(const Action& action) {
  if (!is_transfer(action.op)) return action.micro_batch;
  return action.tag.is_loss() ? MicroBatch{} : action.tag.micro_batch();
}

RankProgram::RankProgram(const LoweredProgram& program, Rank its_rank)
    : header(program),
      rank(its_rank),
      list(program.ranks.at(its_rank.index())),
      slots(program.slots.at(its_rank.index())),
      facts(list.size()),
      groups(groups_of(program)),
      group_of(program.groups_by_micro_batch()),
      most_ahead(most_ahead_of(program)) {
  for (const StageId stage : program.placement.stages_of(rank)) {
    stages.push_back(facts_of(program, list, stage));
  }
  std::set<std::pair<StageId, MicroBatch>> recomputed;
  for (const Action& action : list) {
    if (action.op == Op::recompute) recomputed.emplace(action.stage, action.micro_batch);
  }
  std::vector<std::pair<std::size_t, TieId>> joins;
  Group before{};
  for (std::size_t at = 0; at < list.size(); ++at) {
    const Action& action = list[at];
    ActionFacts& its = facts[at];
    for (std::size_t k = 0; k < stages.size(); ++k) {
      if (stages[k].id == action.stage) its.stage = static_cast<std::int32_t>(k);
    }
    its.micro_batch = micro_batch_of(action);
    its.group = told_group(action, group_of);
    if (!its.group.valid()) its.group = before;
    before = its.group;
    its.recomputed_later = recomputed.contains({action.stage, action.micro_batch});

    if (action.op == Op::agree_norm) agrees = true;
    const bool sum = action.op == Op::reduce || action.op == Op::tie;
    sums = sums || sum;
    // A sum over replicas is looked at when it is complete, and where ranks agree on the norm that tells.
    const bool looks = action.op == Op::step && !agrees && program.placement.replicas(action.stage) == 1 &&
                       !has_ties(program, action.stage);
    if (!sum && !looks) continue;
    const std::int32_t backward = last_backward_into(program, list, static_cast<std::int32_t>(at));
    if (backward < 0) continue;
    const auto joined_at = static_cast<std::size_t>(backward);
    if (action.op == Op::tie) {
      joins.emplace_back(joined_at, action.tie);
    } else {
      facts[joined_at].at_backward = looks ? AtBackward::look_at_layers : AtBackward::join_sum;
    }
  }
  std::stable_sort(joins.begin(), joins.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [at, tie] : joins) {
    ActionFacts& its = facts[at];
    if (its.ties++ == 0) its.first_tie = static_cast<std::int32_t>(tie_joins.size());
    tie_joins.push_back(tie);
  }
}

}  // namespace stagecraft
