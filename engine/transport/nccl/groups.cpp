#include "stagecraft/engine/transport/nccl/groups.h"

#include "stagecraft/schedules/rules/reductions.h"

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

}  // namespace

bool by_chain(SumOrder order, const std::vector<Rank>& copies) {
  return copies.size() > 2 && (order == SumOrder::ordered || ranks_of(copies).size() < copies.size());
}

std::vector<NcclGroup> groups_of(const std::vector<const LoweredProgram*>& programs, SumOrder order) {
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
  }
  return {groups.begin(), groups.end()};
}

}  // namespace stagecraft::transport
