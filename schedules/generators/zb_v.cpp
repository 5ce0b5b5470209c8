// Zero bubble on a V in 1F1B's memory: a micro-batch goes down the ranks and back up, so the first rank,
// where it stays longest, has its last stage as well, where it stays shortest (Qi et al., "Pipeline
// Parallelism with Controllable Memory", arXiv 2405.15362, section 3: V-ZB; its first form is ZB-V in arXiv
// 2401.10241, section 6). Every rank keeps at most p micro-batches' share.

#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/generators/v_pattern.h"

namespace stagecraft {

Schedule zb_v_schedule() {
  return {.name = "zb_v",
          .summary = "a V of two stages a rank: 1F1B's memory on every rank, the bubble of the fill alone",
          .paper = "Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
          .synchronous = true,
          .placement = PlacementKind::v,
          .virtual_stages = 2,
          .orders_by_time = true,
          .build = [](const ScheduleRequest& request) {
            return v_program("zb_v", request, [](int ranks) { return ranks; });
          }};
}

}  // namespace stagecraft
