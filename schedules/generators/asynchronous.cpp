#include "schedules/generators/asynchronous.h"

#include <algorithm>
#include <utility>

namespace stagecraft {

int groups_ended(const std::vector<Group>& groups, int b) {
  const auto next = to_size(std::max(b, 0));
  return next < groups.size() ? groups[next].value : groups.back().value + 1;
}

int version_lag(const Placement& placement, StageId stage) {
  return warm_up_depth(placement, stage) * placement.replicas(stage);
}

ScheduleProgram asynchronous_program(ProgramHeader header,
                                     const std::function<Version(StageId, MicroBatch)>& version_of) {
  const auto groups = header.groups_by_micro_batch();
  const Placement placement = header.placement;
  return merged_program(std::move(header), [&](ReplicaList& list) {
    const int ahead = std::min(list.count(), warm_up_depth(placement, list.stage()));
    const auto forward = [&](int k) { list.forward(k, version_of(list.stage(), list.micro_batch(k))); };
    int stepped = 0;
    // After k own backwards the replica has done its part of every group that ends within its first
    // micro_batch(k) micro-batches: those before the one it comes to next.
    const auto step_complete_groups = [&](int k) {
      const int complete =
          k == list.count() ? groups.back().value + 1 : groups[list.micro_batch(k).index()].value;
      for (; stepped < complete; ++stepped) list.step(Group{stepped});
    };
    for (int k = 0; k < ahead; ++k) forward(k);
    for (int k = 0; k < list.count(); ++k) {
      step_complete_groups(k);
      if (k + ahead < list.count()) forward(k + ahead);
      list.backward(k);
    }
    step_complete_groups(list.count());
  });
}

}  // namespace stagecraft
