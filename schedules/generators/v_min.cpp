// The least memory on a V: every hop follows at once (Qi et al., "Pipeline Parallelism with Controllable
// Memory", arXiv 2405.15362, section 3: V-Min). Every rank keeps at most floor((p + 4) / 3) micro-batches'
// share, a third of 1F1B's.

#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/generators/v_pattern.h"

namespace stagecraft {

Schedule v_min_schedule() {
  return {.name = "v_min",
          .summary = "a V of two stages a rank in a third of 1F1B's memory",
          .paper = "Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
          .synchronous = true,
          .placement = PlacementKind::v,
          .virtual_stages = 2,
          .orders_by_time = true,
          .build = [](const ScheduleRequest& request) {
            return v_program("v_min", request, [](int ranks) { return (ranks + 4) / 3; });
          }};
}

}  // namespace stagecraft
