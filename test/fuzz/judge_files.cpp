#include "test/fuzz/judge_files.h"

#include "base/error.h"
#include "base/json.h"
#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"
#include "schedules/simulator/simulator.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace stagecraft::fuzz {
namespace {

bool small(const Plan& plan) {
  const auto stages = static_cast<int>(plan.stages.size());
  const Schedule& schedule = find_schedule(plan.schedule.name);
  // The generators of searched schedules search.
  const int most = schedule.searched && !plan.program ? 4 : schedule.synchronous ? 40 : 8;
  return stages <= 8 && plan.placement().world() <= 8 && plan.micro_batches <= most / stages;
}

/// Whether a program of it has more actions than any may have.
bool beyond_bounds(const Plan& plan) {
  return !plan.program && static_cast<std::int64_t>(plan.stages.size()) * plan.micro_batches > kMaxActions;
}

void require_refused(const Plan& plan) {
  try {
    (void)plan_program(plan, {plan.micro_batches});
  } catch (const InputError&) {
    return;
  }
  require(false, "what has too many actions is refused before they are made");
}

}  // namespace

bool sane(Seconds time) { return std::isfinite(time.value) && time >= Seconds{}; }

void require_stage(const StageCosts& costs) {
  try {
    (void)json::read<StageCosts>(json::write(costs), {"x", ""});
  } catch (const InputError&) {
    require(false, "a stage's costs are within the bounds of plan.json");
  }
  require(std::max({costs.parameters, costs.buffers, costs.optimizer_state}) <= kMostWeightBytes,
          "a stage's weights are within the checker's bounds");
  require(std::max({costs.input, costs.output, costs.targets, costs.kept_for_input, costs.kept_for_weight,
                    costs.forward_peak, costs.unkept_peak(), costs.backward_peak, costs.input_half_peak(),
                    costs.weight_half_peak()}) <= kMostActivationBytes,
          "a stage's activations are within the checker's bounds");
}

void judge(const Plan& plan) {
  if (beyond_bounds(plan)) return require_refused(plan);
  if (!small(plan)) return;
  const Schedule& schedule = find_schedule(plan.schedule.name);
  try {
    const LoweredProgram program = lower(plan_program(
        plan, segment_groups(schedule, static_cast<int>(plan.stages.size()), plan.micro_batches)));
    const CostTable* costs = plan.costs ? &*plan.costs : nullptr;
    const Proof proof = check(program, costs, plan.capacity);
    require(proof.accepted() || !refusal(proof.findings).empty(), "a refusal says why");
    if (!proof.accepted() || costs == nullptr) return;
    Plan priced = plan;
    priced.predicted = predict(plan);
    require(sane(priced.predicted->step), "a step is a time");
    require_reads_back(priced);
    Simulator simulator(program);
    Seconds lost;
    for (const LostTime& rank : simulator.lost_time(*costs)) lost += rank.total();
    require(sane(lost), "lost time is a time");
    for (const Seconds step : simulator.sample(*costs, {.samples = 2, .stage_spread = 0.1})) {
      require(sane(step), "a step with jitter is a time");
    }
  } catch (const InputError&) {    // the schedule does not take it
  } catch (const RefusedError&) {  // it does not fit
  }
}

}  // namespace stagecraft::fuzz
