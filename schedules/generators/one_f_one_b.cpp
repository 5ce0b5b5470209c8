// 1F1B with a flush: as many forwards as it takes to reach the end of the pipeline, then one forward and one
// backward in turn, then the remaining backwards and the step (PipeDream-Flush: Narayanan et al., "Memory-
// Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503, section 3.2; DAPPLE: Fan et al., arXiv
// 2007.01045). The bubble is fill_drain's; a stage keeps p - s micro-batches instead of all.
// `warmup_extra` micro-batches more forwarded beforehand, and kept, hide transfers: a backward's way back
// then has that much longer. Of a stage with replicas each takes its whole share of them: more than e
// micro-batches in all would wait for forwards that a narrower stage before it makes only after its first
// backward.

#include "schedules/generators/assembly.h"
#include "schedules/generators/registry.h"

namespace stagecraft {
namespace {

ScheduleProgram build_one_f_one_b(const ScheduleRequest& request) {
  const Placement& placement = request.placement;
  return flushed_program(training_header("1f1b", request), request.clip, [&](const ReplicaList& list) {
    const int extra = request.warmup_extra / placement.replicas(list.stage());
    return warm_up_depth(placement, list.stage()) + extra;
  });
}

}  // namespace

Schedule one_f_one_b_schedule() {
  return {
      .name = "1f1b",
      .summary = "one forward, one backward, and a flush at the step; keeps p - s micro-batches on stage s",
      .paper = "PipeDream-Flush, arXiv 2006.09503; DAPPLE, arXiv 2007.01045",

      .takes_warmup_extra = true,
      .build = build_one_f_one_b};
}

}  // namespace stagecraft
