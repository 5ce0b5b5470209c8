// Interleaved 1F1B with split backwards: weight gradients fill what would be idle time (the loop of Megatron-LM,
// arXiv 2104.04473, section 2.2, with the split of Qi et al., "Zero Bubble Pipeline Parallelism", arXiv
// 2401.10241, section 2). Every rank keeps at most p micro-batches' share, from the forward to the weight
// gradient, of every stage.

#include "schedules/generators/list_scheduler.h"

#include <utility>

namespace stagecraft {
namespace {

ScheduleProgram build(const ScheduleRequest& request) {
  ProgramHeader header = make_header("interleaved_zb", SegmentKind::train, request);
  const VirtualStages shape = virtual_stages(header.placement, PlacementKind::loop, "interleaved_zb");
  const MemoryLimit limit =
      stage_limit(header.placement, static_cast<std::int64_t>(shape.ranks) * shape.virtual_stages);
  const Orders orders = best_orders(workload_of(request), limit);
  return synchronous_program(std::move(header), orders, request.clip);
}

}  // namespace

Schedule interleaved_zb_schedule() {
  return {.name = "interleaved_zb",
          .summary = "interleaved 1F1B with weight gradients put off",
          .paper = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
          .synchronous = true,
          .placement = PlacementKind::loop,
          .virtual_stages = 2,
          .orders_by_time = true,
          .build = build};
}

}  // namespace stagecraft
