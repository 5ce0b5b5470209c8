#include "stagecraft/schedules/rules/reductions.h"

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

std::int32_t last_backward_into(const std::vector<Action>& list, std::int32_t end) {
  const Action& ends = list[static_cast<std::size_t>(end)];
  for (std::int32_t i = end - 1; i >= 0; --i) {
    const Action& action = list[static_cast<std::size_t>(i)];
    if (action.stage != ends.stage) continue;
    if (action.op == Op::step || action.op == Op::reduce) return -1;  // of a group before
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

}  // namespace stagecraft
