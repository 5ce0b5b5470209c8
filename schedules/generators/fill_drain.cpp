// GPipe's schedule: all forwards of the mini-batch, then all backwards (Huang et al., "GPipe: Efficient
// Training of Giant Neural Networks using Pipeline Parallelism", arXiv 1811.06965, section 2.2, figure 2c).
// Backwards run in micro-batch order, not in reverse as in the paper's figure, because gradients add in
// micro-batch order whatever the schedule: that makes the results of all synchronous schedules equal to the
// bit.

#include "schedules/generators/assembly.h"
#include "schedules/generators/registry.h"

namespace stagecraft {

Schedule fill_drain_schedule() {
  return {.name = "fill_drain",
          .summary = "all forwards, then all backwards; keeps every micro-batch of the step",
          .paper = "GPipe, arXiv 1811.06965",

          .build = [](const ScheduleRequest& request) {
            return flushed_program(training_header("fill_drain", request), request.clip,
                                   [](const ReplicaList& list) { return list.count(); });
          }};
}

}  // namespace stagecraft
