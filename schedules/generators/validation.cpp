// Validation: forwards only, in micro-batch order, and one report. Nothing is kept, so no schedule could do
// better.

#include "schedules/generators/assembly.h"

namespace stagecraft {

ScheduleProgram validation_program(const Placement& placement, int micro_batches,
                                   const std::vector<StageId>& also_load, const std::vector<Skip>& skips) {
  ScheduleProgram program = merged_program(
      make_header("validation", SegmentKind::validate, placement, {micro_batches}), [](ReplicaList& list) {
        for (int k = 0; k < list.count(); ++k) list.forward(k, Version{0});
      });
  program.ranks[placement.ranks[0][0].index()].push_back(
      {.op = Op::report_loss, .stage = StageId{0}, .group = Group{0}});
  add_loads(program, also_load);
  add_skips(program, skips);
  return program;
}

}  // namespace stagecraft
