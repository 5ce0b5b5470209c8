// PipeDream: weight stashing and vertical sync (Narayanan et al., "PipeDream: Generalized Pipeline
// Parallelism for DNN Training", SOSP 2019, section 3.3). With weight stashing a forward reads the newest
// weights of its stage; with vertical sync every stage reads what stage 0 read for that micro-batch, which
// lags most.

#include "schedules/generators/asynchronous.h"
#include "schedules/generators/registry.h"

namespace stagecraft {
namespace {

ScheduleProgram build_pipedream(const ScheduleRequest& request) {
  ProgramHeader header = training_header("pipedream", request);
  const auto groups = header.groups_by_micro_batch();
  const Placement& placement = request.placement;
  return asynchronous_program(std::move(header), [&](StageId stage, MicroBatch micro_batch) {
    const int lag = version_lag(placement, request.vertical_sync ? StageId{0} : stage);
    return Version{groups_ended(groups, micro_batch.value - lag)};
  });
}

}  // namespace

Schedule pipedream_schedule() {
  return {
      .name = "pipedream",
      .summary = "1F1B without a flush: no bubble, weights read up to p - 1 - s steps late (weight stashing)",
      .paper = "PipeDream, SOSP 2019",
      .synchronous = false,
      .takes_vertical_sync = true,
      .clips = false,
      .build = build_pipedream};
}

}  // namespace stagecraft
