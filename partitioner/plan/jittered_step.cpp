#include "partitioner/plan/jittered_step.h"

#include "base/statistics.h"
#include "base/text.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/consecutive.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {
namespace {

void require_spread(const Plan& plan, const Jitter& jitter) {
  const std::vector<StageCosts>& stages = plan.costs->stages;
  if (jitter.stage_spread > 0 || jitter.link_spread > 0) return;
  if (std::any_of(stages.begin(), stages.end(), [](const StageCosts& stage) { return stage.spread; })) return;
  throw InputError(
      fmt::format("no layer of the profile has a spread_ms for micro-batches of {}, so nothing says how much "
                  "times vary: profile that size again, or plan with one that has them",
                  plural(plan.micro_batch_size, "sample")));
}

}  // namespace

JitteredStep jittered_step(const Plan& plan, const Jitter& jitter) {
  STAGECRAFT_CHECK(plan.costs, "a plan without costs cannot be priced");
  require_spread(plan, jitter);
  const Schedule& schedule = find_schedule(plan.schedule.name);
  const std::vector<int> groups =
      segment_groups(schedule, static_cast<int>(plan.stages.size()), plan.micro_batches);
  LoweredProgram program = lower(plan_program(plan, groups));
  // What fills and drains where synchronous steps overlap is none of a step's time.
  Seconds once;
  if (schedule.synchronous) {
    constexpr int kSteps = 4;
    Simulator step(program);
    once = step.run(*plan.costs).makespan - step.cycle(*plan.costs);
    if (once > Seconds{}) program = repeated(program, kSteps);
  }
  std::vector<double> samples;
  for (const Seconds sample : Simulator(program).sample(*plan.costs, jitter)) {
    samples.push_back((sample - once).value / static_cast<double>(program.groups()));
  }
  return {Seconds{quantile(samples, 0.5)}, Seconds{quantile(samples, 0.95)}};
}

}  // namespace stagecraft
