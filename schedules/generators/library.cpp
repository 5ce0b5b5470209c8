#include "schedules/generators/library.h"

#include "base/error.h"
#include "schedules/generators/assembly.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/v_blocks.h"
#include "schedules/synthesis/seeds.h"

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

ScheduleRequest request_of(const SynthesisRequest& request) {
  return {.placement = request.placement,
          .group_sizes = {request.micro_batches},
          .clip = request.clip,
          .goes_on = request.goes_on,
          .costs = request.costs,
          .priced_as = request.part ? request.part->ranks : std::vector<Rank>(),
          .capacity = request.capacity,
          .recompute = request.recompute};
}

/// Of a program of equal pipelines what is left for the one that has `ranks`, as a program of its own.
ScheduleProgram first_pipeline(const ScheduleProgram& whole, const ScheduleRequest& one) {
  const int replicas = whole.placement.replicas(StageId{0});
  const Orders all = synthesis::orders_of(whole);
  Orders orders;
  for (const Rank rank : one.priced_as) {
    Order& order = orders.emplace_back(all[rank.index()]);
    for (Compute& compute : order) compute.micro_batch = MicroBatch{compute.micro_batch.value / replicas};
  }
  return synchronous_program(training_header("auto", one), orders, one.clip);
}

/// A search of its own for each pipeline that differs; then the whole's library is judged, and what was found with it.
Synthesis synthesize_pipelines(SynthesisRequest request) {
  std::string from;
  std::int64_t searched = 0;
  const auto order = [&](const ScheduleRequest& one) {
    SynthesisRequest part{.placement = one.placement,
                          .micro_batches = one.group_sizes.front(),
                          .clip = one.clip,
                          .costs = one.costs,
                          .capacity = one.capacity,
                          .recompute = one.recompute,
                          .gradient_from = request.gradient_from,
                          .also_load = request.also_load,
                          .ties = request.ties,
                          .part = PartOf{request.placement, one.priced_as},
                          .goes_on = one.goes_on,
                          .budget = request.budget};
    const bool is_first = from.empty();
    for (const NamedProgram& known : request.library) {
      if (is_first) part.library.push_back({known.name, first_pipeline(known.program, one)});
    }
    const Synthesis found = synthesize_over_schedules(std::move(part));
    if (is_first) from = found.from;
    searched += found.orders;
    return synthesis::orders_of(found.program);
  };
  ScheduleProgram program = program_by_time("auto", request_of(request), order);
  request.library.push_back({std::move(from), std::move(program)});
  request.budget.work = 0;
  Synthesis judged = synthesize_over_schedules(std::move(request));
  judged.orders += searched;
  return judged;
}

}  // namespace

Synthesis synthesize_over_schedules(SynthesisRequest request) {
  if (request.budget.work > 0 && has_equal_pipelines(request.placement))
    return synthesize_pipelines(std::move(request));
  ScheduleRequest asked = request_of(request);
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
