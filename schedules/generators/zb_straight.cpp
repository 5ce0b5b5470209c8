#include "schedules/generators/zb_straight.h"

#include <utility>

namespace stagecraft {

ScheduleProgram zb_straight(const char* schedule, const ScheduleRequest& request, int turns) {
  ProgramHeader header = make_header(schedule, SegmentKind::train, request);
  const Placement& placement = header.placement;
  int ranks = 0;  // a rank that holds two stages counts twice, as in warm_up_depth
  for (const auto& replicas : placement.ranks) ranks += static_cast<int>(replicas.size());
  MemoryLimit limit = stage_limit(placement, 0);
  limit.capacity.assign(limit.capacity.size(), 0);
  for (const auto& replicas : placement.ranks) {
    const int kept = turns * ((ranks - 1) / static_cast<int>(replicas.size())) + 1;
    for (const Rank rank : replicas) limit.capacity[rank.index()] += kept;
  }
  const Orders orders = best_orders(workload_of(request), limit);
  return synchronous_program(std::move(header), orders, request.clip);
}

}  // namespace stagecraft
