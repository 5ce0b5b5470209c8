#include "schedules/rules/staleness.h"

namespace stagecraft {
namespace {

struct Mean {
  std::int64_t sum = 0, count = 0;

  void add(int value) {
    sum += value;
    ++count;
  }
  [[nodiscard]] double value() const {
    return count == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(count);
  }
};

}  // namespace

std::vector<UpdateStaleness> staleness_of_updates(const LoweredProgram& program, StageId stage) {
  const auto groups = to_size(program.groups());
  const std::vector<Group> group_of = program.groups_by_micro_batch();
  std::vector<Mean> gradients(groups), readers(groups + 1);
  for (const Rank rank : program.placement.ranks[stage.index()]) {
    for (const Action& action : program.ranks[rank.index()]) {
      if (action.op != Op::forward || action.stage != stage) continue;
      const Group group = group_of[action.micro_batch.index()];
      const int late = staleness_of(action, group);
      gradients[group.index()].add(late);
      readers[action.version.index()].add(late);
    }
  }
  std::vector<UpdateStaleness> updates;
  for (std::size_t g = 0; g < groups; ++g) {
    updates.push_back({gradients[g].value(), readers[g + 1].value()});
  }
  return updates;
}

}  // namespace stagecraft
