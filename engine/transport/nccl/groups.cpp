#include "engine/transport/nccl/groups.h"

#include "schedules/rules/reductions.h"

#include <algorithm>
#include <set>

namespace stagecraft::transport {
namespace {

void add_groups(const Tag& sum, const std::vector<Rank>& copies, SumOrder order,
                std::set<NcclGroup>& groups) {
  const std::vector<Rank> ranks = ranks_of(copies);
  if (ranks.size() < 2) return;
  groups.insert({sum, NcclGroup::kAll, ranks});
  if (!by_chain(order, copies)) return;
  for (std::size_t k = 1; k < copies.size(); ++k) {
    if (copies[k - 1] != copies[k]) groups.insert({sum, static_cast<int>(k) - 1, {copies[k - 1], copies[k]}});
  }
}

std::vector<Rank> all_ranks(int world) {
  std::vector<Rank> ranks;
  for (int r = 0; r < world; ++r) ranks.emplace_back(r);
  return ranks;
}

bool agrees(const LoweredProgram& program) {
  return std::any_of(program.ranks.front().begin(), program.ranks.front().end(),
                     [](const Action& action) { return action.op == Op::agree_norm; });
}

}  // namespace

bool by_chain(SumOrder order, const std::vector<Rank>& copies) {
  return copies.size() > 2 && (order == SumOrder::ordered || ranks_of(copies).size() < copies.size());
}

std::vector<NcclGroup> groups_of(const std::vector<const LoweredProgram*>& programs, SumOrder order,
                                 bool norms) {
  std::set<NcclGroup> groups;
  for (const LoweredProgram* program : programs) {
    if (program->kind != SegmentKind::train) continue;
    const Placement& placement = program->placement;
    for (int s = 0; s < placement.stages(); ++s) {
      add_groups(Tag::reduction(StageId{s}, Group{0}), placement.ranks[static_cast<std::size_t>(s)], order,
                 groups);
    }
    for (std::size_t k = 0; k < program->ties.size(); ++k) {
      add_groups(Tag::tied(TieId{k}, Group{0}), copies_of(placement, program->ties[k]), order, groups);
    }
    if (norms && agrees(*program))
      add_groups(Tag::norms(Group{0}), all_ranks(placement.world()), SumOrder::nccl, groups);
  }
  return {groups.begin(), groups.end()};
}

}  // namespace stagecraft::transport
