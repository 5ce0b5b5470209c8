// An order made for the costs: searched for, in a small budget that is counted in work, so that every rank
// finds the same. `stagecraft plan` searches longer, over placements too, and puts what it found into the
// plan.

#include "schedules/generators/assembly.h"
#include "schedules/generators/library.h"
#include "schedules/generators/registry.h"

#include <cstdint>
#include <limits>

namespace stagecraft {
namespace {

constexpr std::int64_t kGeneratorWork = 50'000;

/// Everything takes and keeps one unit, transfers take nothing.
CostTable even_costs(const Placement& placement) {
  CostTable costs;
  StageCosts stage;
  stage.forward = stage.backward_input = stage.backward_weight = Seconds{1};
  stage.kept_for_input = stage.kept_for_weight = Bytes{1};
  costs.stages.assign(placement.ranks.size(), stage);
  costs.network.levels = {{placement.world(), Link{Seconds{0}, std::numeric_limits<double>::infinity()}}};
  return costs;
}

ScheduleProgram build_auto(const ScheduleRequest& request) {
  (void)training_header("auto", request);  // refuses what is too large to search
  const CostTable even = request.costs == nullptr ? even_costs(request.placement) : CostTable{};
  return synthesize_over_schedules({.placement = request.placement,
                                    .micro_batches = request.group_sizes.front(),
                                    .clip = request.clip,
                                    .costs = request.costs == nullptr ? &even : request.costs,
                                    .capacity = request.capacity,
                                    .recompute = request.recompute,
                                    .gradient_from = request.gradient_from,
                                    .also_load = request.also_load,
                                    .ties = request.ties,
                                    .budget = {.work = kGeneratorWork}})
      .program;
}

}  // namespace

Schedule auto_schedule() {
  return {
      .name = "auto",
      .summary = "an order searched for, from the costs and within the memory; never behind any other's here",
      .paper = "list scheduling and threshold accepting over every other schedule; docs/design/synthesis.md",

      .orders_by_time = true,
      .searched = true,
      .build = build_auto};
}

}  // namespace stagecraft
