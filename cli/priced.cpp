#include "stagecraft/cli/priced.h"

#include "stagecraft/base/error.h"
#include "stagecraft/cli/drawing.h"
#include "stagecraft/schedules/checker/checker.h"
#include "stagecraft/schedules/lowering/lowering.h"

#include <algorithm>

namespace stagecraft::cli {
namespace {

/// A synchronous step ends with nothing in flight, so n of them are n times one.
void repeat(Simulation& simulation, int times) {
  const double n = times;
  simulation.makespan = simulation.makespan * n;
  for (RankTimes& rank : simulation.ranks) {
    for (Seconds* part : {&rank.forward, &rank.backward, &rank.step, &rank.wait_activation,
                          &rank.wait_gradient, &rank.wait_send, &rank.wait_other, &rank.idle_end}) {
      *part = *part * n;
    }
  }
}

Seconds steady_step(Plan plan, const CostTable& costs) {
  plan.capacity.reset();
  plan.costs = costs;
  return predict(plan).step;
}

void repeat(LostTime& lost, int times) {
  const double n = times;
  for (Seconds* part : {&lost.imbalance, &lost.dependency, &lost.exposed_transfer, &lost.blocked_send,
                        &lost.memory, &lost.barrier}) {
    *part = *part * n;
  }
}

void require_spread(const CostTable& costs, const InputProgram& input, const Jitter& jitter) {
  const bool measured = std::any_of(costs.stages.begin(), costs.stages.end(),
                                    [](const StageCosts& stage) { return stage.spread.has_value(); });
  if (measured || jitter.stage_spread > 0 || jitter.link_spread > 0) return;
  throw InputError(
      {input.path, "/costs/stages"},
      "no stage has a \"spread\", which a profile's spread_ms would give; say how much times vary "
      "with --stage-spread or --link-spread");
}

}  // namespace

SimulationReport price(const InputProgram& input, const PriceRequest& request) {
  const CostTable* costs = input.costs();
  const LoweredProgram program = input.lowered();
  // Memory may be short here: what a plan would take is asked, not whether it fits.
  const Proof proof = prove(program, costs);
  Simulator simulator(program);
  SimulationReport priced;
  priced.simulation = simulator.run(*costs);
  priced.free_links = simulator.run_free_links(*costs);
  priced.lost = simulator.lost_time(*costs);
  if (request.jitter.samples > 0) {
    require_spread(*costs, input, request.jitter);
    priced.samples = simulator.sample(*costs, request.jitter);
  }
  priced.steps = program.groups();
  if (!input.synchronous && input.plan) priced.steady_step = steady_step(*input.plan, *costs);
  const int repeats = input.synchronous ? request.steps.value_or(1) : 1;
  if (request.draws) priced.panel = draw(input, program, proof, repeats);
  priced.steps *= repeats;
  repeat(priced.simulation, repeats);
  repeat(priced.free_links, repeats);
  for (LostTime& lost : priced.lost) repeat(lost, repeats);
  return priced;
}

}  // namespace stagecraft::cli
