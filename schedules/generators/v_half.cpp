// Half of 1F1B's memory on a V: micro-batches stay half as long as under zb_v (Qi et al., "Pipeline
// Parallelism with Controllable Memory", arXiv 2405.15362, section 3: V-Half). Every rank keeps at most
// floor((p + 2) / 2) micro-batches' share.

#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/generators/v_pattern.h"

namespace stagecraft {

Schedule v_half_schedule() {
  return {.name = "v_half",
          .summary = "a V of two stages a rank in half of 1F1B's memory",
          .paper = "Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
          .synchronous = true,
          .placement = PlacementKind::v,
          .virtual_stages = 2,
          .orders_by_time = true,
          .build = [](const ScheduleRequest& request) {
            return v_program("v_half", request, [](int ranks) { return (ranks + 2) / 2; });
          }};
}

}  // namespace stagecraft
