#include "schedules/rules/reductions.h"

#include <algorithm>

namespace stagecraft {

std::vector<Rank> members_of(const Placement& placement, Op op, StageId stage) {
  std::vector<Rank> members;
  if (op == Op::agree_norm) {
    for (int r = 0; r < placement.world(); ++r) members.emplace_back(r);
  } else if (stage.valid() && stage.value < placement.stages()) {
    members = placement.ranks[stage.index()];
    std::sort(members.begin(), members.end());
  }
  return members;
}

std::vector<Rank> members_of(const Placement& placement, const std::vector<StageId>& holders) {
  std::vector<Rank> members = ranks_of(copies_of(placement, holders));
  std::sort(members.begin(), members.end());
  return members;
}

std::vector<Rank> copies_of(const Placement& placement, const std::vector<StageId>& holders) {
  std::vector<Rank> copies;
  for (std::size_t i = holders.size(); i-- > 0;) {
    const std::vector<Rank>& replicas = placement.ranks[holders[i].index()];
    copies.insert(copies.end(), replicas.begin(), replicas.end());
  }
  return copies;
}

std::vector<Rank> ranks_of(const std::vector<Rank>& copies) {
  std::vector<Rank> ranks;
  for (const Rank rank : copies) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  }
  return ranks;
}

std::int32_t last_backward_into(const ProgramHeader& header, const std::vector<Action>& list,
                                std::int32_t end) {
  const Action& ends = list[static_cast<std::size_t>(end)];
  const bool tied = ends.op == Op::tie;
  for (std::int32_t i = end - 1; i >= 0; --i) {
    const Action& action = list[static_cast<std::size_t>(i)];
    if (!action.stage.valid() || !(tied ? header.holds(action.stage, ends.tie) : action.stage == ends.stage))
      continue;
    // Of a group before; only another reduction of the stage may stand between a tie's backwards and the tie.
    if (action.op == Op::step || (action.op == Op::reduce && !tied)) return -1;
    if (action.group != ends.group) continue;
    if (is_weight_part(action.op)) return i;
  }
  return -1;
}

Bytes reduce_staging(Bytes summed, int replicas) {
  if (summed.value == 0 || replicas == 1) return {};
  // Parts are rounded up to whole numbers, and each piece's staging to a line: of one piece at a time so much
  // is sure to fit.
  constexpr std::int64_t kNumber = 8;
  const std::int64_t rounding = kNumber * (replicas - 1) + kReduceLine;
  return std::min(kReduceStaging,
                  summed - Bytes{summed.value / replicas} + std::min(summed, kReducePack) + Bytes{rounding});
}

Bytes tie_staging(Bytes weight, const std::vector<Rank>& copies, Rank rank) {
  const auto others =
      static_cast<std::int64_t>(copies.size()) - std::count(copies.begin(), copies.end(), rank);
  if (weight.value == 0 || others == 0) return {};
  constexpr std::int64_t kNumber = 8;
  const std::int64_t part = weight.value / static_cast<std::int64_t>(ranks_of(copies).size()) + kNumber;
  return std::min(kReduceStaging, Bytes{others * part + kReduceLine});
}

}  // namespace stagecraft
