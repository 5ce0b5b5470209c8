#include "cli/priced.h"

#include "base/error.h"
#include "cli/drawing.h"
#include "schedules/checker/checker.h"
#include "schedules/program/consecutive.h"

#include <algorithm>

namespace stagecraft::cli {
namespace {

/// None of a file that says one asynchronous segment and no more.
std::optional<Seconds> steady_step(const InputProgram& input, const LoweredProgram& step,
                                   const CostTable& costs) {
  if (input.synchronous) return Simulator(step).cycle(costs);
  if (!input.plan) return std::nullopt;
  Plan plan = *input.plan;
  plan.capacity.reset();
  plan.costs = costs;
  return predict(plan).step;
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
  const LoweredProgram once = input.lowered();
  // Memory may be short here: what a plan would take is asked, not whether it fits.
  const Proof proof = prove(once, costs);
  const int steps = input.synchronous ? request.steps.value_or(1) : 1;
  const LoweredProgram program = steps > 1 ? repeated(once, steps) : once;
  Simulator simulator(program);
  SimulationReport priced;
  priced.simulation = simulator.run(*costs);
  priced.free_links = simulator.run_free_links(*costs);
  priced.lost = simulator.lost_time(*costs);
  if (request.jitter.samples > 0) {
    require_spread(*costs, input, request.jitter);
    priced.samples = Simulator(once).sample(*costs, request.jitter);
  }
  priced.steps = program.groups();
  priced.steady_step = steady_step(input, once, *costs);
  if (request.draws) priced.panel = draw(input, program, proof);
  return priced;
}

}  // namespace stagecraft::cli
