#include "schedules/generators/library.h"

#include "base/error.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/v_blocks.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

std::vector<int> warmups_of(const Schedule& schedule, int ranks) {
  if (!schedule.takes_warmup_extra) return {0};
  std::vector<int> extras{0, 1, 2};
  if (ranks > 2) extras.push_back(ranks);
  return extras;
}

bool is_v(const Placement& placement) {
  try {
    return virtual_stages(placement, PlacementKind::v, "auto").virtual_stages == 2;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace

Synthesis synthesize_over_schedules(SynthesisRequest request) {
  ScheduleRequest asked{.placement = request.placement,
                        .group_sizes = {request.micro_batches},
                        .clip = request.clip,
                        .costs = request.costs,
                        .capacity = request.capacity,
                        .recompute = request.recompute};
  for (const Schedule& schedule : schedules()) {
    if (!schedule.synchronous || schedule.searched) continue;
    for (const int extra : warmups_of(schedule, request.placement.world())) {
      asked.warmup_extra = extra;
      try {
        request.library.push_back(
            {extra == 0 ? schedule.name : fmt::format("{} warmup_extra {}", schedule.name, extra),
             schedule.generate(asked)});
      } catch (const InputError&) {  // not for such a placement
        break;
      }
    }
  }
  if (!request.keeping && is_v(request.placement)) {
    const VirtualStages shape = virtual_stages(request.placement, PlacementKind::v, "auto");
    request.keeping = [shape, workload = workload_of({.placement = request.placement,
                                                      .micro_batches = request.micro_batches})](int kept) {
      return v_block_orders(workload, shape, kept);
    };
  }
  return synthesize(request);
}

}  // namespace stagecraft
