#include "stagecraft/schedules/lowering/insert_recomputes.h"

namespace stagecraft {

void insert_recomputes(ScheduleProgram& program, const RecomputeSettings& settings) {
  validate_settings(settings, program.placement.stages());
  if (!any_recompute(settings)) return;
  if (program.kind == SegmentKind::validate) {
    throw InputError("recompute: a validation pass keeps nothing, so there is nothing to recompute");
  }
  const std::vector<int> ends = group_ends(program.group_sizes);
  for (auto& list : program.ranks) {
    std::vector<Action> with;
    with.reserve(list.size() + list.size() / 2);
    for (const Action& action : list) {
      if (action.op == Op::backward || action.op == Op::backward_input) {
        Action again = action;
        again.op = Op::recompute;
        const bool there = !with.empty() && with.back() == again;
        if (!there && recomputes(settings[action.stage.index()], action.micro_batch,
                                 program.placement.width(action.stage), ends[action.group.index()])) {
          with.push_back(again);
        }
      }
      with.push_back(action);
    }
    list = std::move(with);
  }
}

}  // namespace stagecraft
