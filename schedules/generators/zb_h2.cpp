// Zero bubble in twice 1F1B's memory: enough forwards ahead that a rank never waits between its first and its
// last action, where the parts of a micro-batch take equal times (Qi et al., "Zero Bubble Pipeline
// Parallelism", arXiv 2401.10241, section 2: ZB-H2). A rank that starts later ends later: it is worth its
// memory only where nothing, such as clipping by the global norm, makes the ranks meet at the step.

#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/generators/zb_straight.h"

namespace stagecraft {

Schedule zb_h2_schedule() {
  return {.name = "zb_h2",
          .summary = "no idle time between first and last action, in twice the memory",
          .paper = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
          .synchronous = true,
          .orders_by_time = true,
          .build = [](const ScheduleRequest& request) { return zb_straight("zb_h2", request, 2); }};
}

}  // namespace stagecraft
