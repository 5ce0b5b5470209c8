#include "cli/plan_under.h"

#include "base/error.h"
#include "cli/drawing.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "schedules/costs/traffic.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/pictures/svg.h"
#include "schedules/program/consecutive.h"
#include "schedules/simulator/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft::cli {
namespace {

/// Steps in a picture where nobody says how many and some schedule has no flush between them.
constexpr int kDrawnSteps = 3;

/// The plan with another schedule. Options of the plan's own schedule mean nothing to others, but whether a
/// step agrees on the norm is the training's question.
Plan under(const Plan& plan, const ScheduleAsked& schedule, const CostTable& costs) {
  Plan other = plan;
  schedule.apply_to(other.schedule);
  if (plan.schedule.name != schedule.name) other.program.reset();  // its order is its own schedule's
  other.costs = costs;
  return other;
}

void judge(const Proof& proof, std::optional<Bytes> capacity, Compared& compared) {
  for (const MemoryProof& memory : proof.memory) {
    if (compared.worst.valid() && memory.peak <= compared.peak) continue;
    compared.worst = memory.rank;
    compared.peak = memory.peak;
  }
  compared.fits = !capacity || compared.peak <= *capacity;
  for (const StageProof& stage : proof.stages)
    compared.versions = std::max(compared.versions, stage.versions_alive);
}

Panel drawn(const std::string& path, const Plan& plan, bool synchronous, int steps) {
  InputRequest request;
  if (!synchronous) request.steps = steps;
  const InputProgram input = plan_input(path, plan, request);
  const LoweredProgram program = lower(input.program);
  const Proof proof = prove(program, input.costs());
  return draw(input, synchronous && steps > 1 ? repeated(program, steps) : program, proof);
}

Compared compare_one(const InputProgram& input, const ScheduleAsked& asked, const InputRequest& request,
                     int drawn_steps) {
  const Schedule& schedule = find_schedule(asked.name);
  Compared compared;
  compared.schedule = asked.name;
  try {
    const CostTable& costs = *input.costs();
    const Plan plan = under(*input.plan, asked, costs);
    const InputProgram other = plan_input(input.path, plan, request);
    const LoweredProgram program = lower(other.program);
    judge(prove(program, &costs), plan.capacity, compared);
    const Traffic sent = traffic(program, costs);
    compared.messages = sent.messages / program.groups();
    compared.sent = Bytes{sent.bytes.value / program.groups()};
    if (request.steps) {
      const bool again = schedule.synchronous && *request.steps > 1;
      const Simulation simulation = simulate(again ? repeated(program, *request.steps) : program, costs);
      compared.time = simulation.makespan;
      compared.bubble = simulation.bubble;
    } else {
      Plan unbounded = plan;  // what it would take is asked, not whether it fits
      unbounded.capacity.reset();
      const Prediction prediction = predict(unbounded);
      compared.steady = !schedule.synchronous;
      compared.time = prediction.step;
      compared.bubble = prediction.bubble;
    }
    if (drawn_steps > 0) compared.panel = drawn(input.path, plan, schedule.synchronous, drawn_steps);
  } catch (const InputError& error) {
    compared.refused = error.what();
  } catch (const RefusedError& error) {
    compared.refused = error.what();
  }
  return compared;
}

Comparison compare(const InputProgram& input, const PlanUnder& asked) {
  const bool flushes = std::ranges::all_of(
      asked.schedules, [](const ScheduleAsked& s) { return find_schedule(s.name).synchronous; });
  const int steps = asked.request.steps.value_or(flushes ? 1 : kDrawnSteps);
  Comparison comparison;
  comparison.steps = asked.request.steps.value_or(0);
  for (const ScheduleAsked& schedule : asked.schedules) {
    comparison.schedules.push_back(
        compare_one(input, schedule, asked.request, asked.svg.empty() ? 0 : steps));
  }
  return comparison;
}

/// The panels of the schedules that could take the plan.
std::vector<Panel> panels_of(Comparison& comparison) {
  std::vector<Panel> panels;
  for (Compared& compared : comparison.schedules) {
    if (compared.refused.empty()) panels.push_back(std::move(compared.panel));
  }
  return panels;
}

}  // namespace

void compare_under(const PlanUnder& asked) {
  const InputProgram input = priced_input(asked.path, asked.request, asked.unit_costs);
  if (!input.plan) {
    throw InputError({input.path, ""},
                     "is one schedule, written out; compare takes a plan, to put its stages under others");
  }
  Comparison comparison = compare(input, asked);
  const bool any = comparison.any();
  const bool drawn = any && !asked.svg.empty();
  if (drawn) write_output(asked.svg, to_svg(panels_of(comparison)));
  if (asked.as_json) {
    print_json(comparison_json(input, comparison));
  } else {
    print(fmt::format("{}: stages {}, ranks {}, micro-batches per step {}\n\n", input.path,
                      input.plan->stages.size(), input.program.placement.world(), input.plan->micro_batches));
    print(comparison_text(input, comparison));
    if (drawn) print(fmt::format("\nPicture: {}\n", asked.svg));
  }
  if (!any) throw RefusedError(input.path + ": none of these schedules can take it");
}

bool Comparison::any() const {
  return std::ranges::any_of(schedules, [](const Compared& c) { return c.refused.empty(); });
}

}  // namespace stagecraft::cli
