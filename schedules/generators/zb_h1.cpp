// Zero bubble in 1F1B's memory: a backward is split, the half that the previous stage waits for goes first,
// and the weight half fills what would be idle time (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv
// 2401.10241, section 2: ZB-H1). No rank keeps more micro-batches, from their forward to their weight
// gradient, than 1F1B's first rank does. The paper draws the order for equal times; here list scheduling
// makes it from the true ones.

#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/generators/zb_straight.h"

namespace stagecraft {

Schedule zb_h1_schedule() {
  return {.name = "zb_h1",
          .summary = "1F1B with weight gradients put off: less bubble in the same memory",
          .paper = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
          .synchronous = true,
          .orders_by_time = true,
          .build = [](const ScheduleRequest& request) { return zb_straight("zb_h1", request, 1); }};
}

}  // namespace stagecraft
