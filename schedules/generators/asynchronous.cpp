#include "stagecraft/schedules/generators/asynchronous.h"

#include <algorithm>
#include <utility>

namespace stagecraft {

GroupsEnded::GroupsEnded(const std::vector<int>& group_sizes) : ended_{0} {
  for (const int size : group_sizes) {
    ended_.insert(ended_.end(), static_cast<std::size_t>(size - 1), ended_.back());
    ended_.push_back(ended_.back() + 1);
  }
}

int GroupsEnded::within(int b) const {
  return b <= 0 ? 0 : ended_[std::min(static_cast<std::size_t>(b), ended_.size() - 1)];
}

int version_lag(const Placement& placement, StageId stage) {
  return warm_up_depth(placement, stage) * placement.width(stage);
}

ScheduleProgram asynchronous_program(ProgramHeader header,
                                     const std::function<Version(StageId, MicroBatch)>& version_of) {
  const GroupsEnded ended(header.group_sizes);
  const Placement placement = header.placement;
  const int groups = header.groups();
  return merged_program(std::move(header), [&](ReplicaList& list) {
    const int ahead = std::min(list.count(), warm_up_depth(placement, list.stage()));
    const auto forward = [&](int k) { list.forward(k, version_of(list.stage(), list.micro_batch(k))); };
    int stepped = 0;
    // After k own backwards the replica has done its part of every group that ends within its first
    // micro_batch(k) micro-batches: those before the one it comes to next.
    const auto step_complete_groups = [&](int k) {
      const int complete = k == list.count() ? groups : ended.within(list.micro_batch(k).value);
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
