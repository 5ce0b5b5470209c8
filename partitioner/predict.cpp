#include "stagecraft/partitioner/plan.h"
#include "stagecraft/schedules/checker/checker.h"
#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/simulator/simulator.h"

#include <algorithm>

namespace stagecraft {

namespace {

/// What one segment is predicted to take, and every rank's share of it.
struct SegmentPrice {
  Seconds step;
  Seconds step_ideal;
  std::vector<Seconds> busy;  // a rank
  std::vector<Bytes> memory;
};

SegmentPrice price(const Plan& plan, const std::vector<int>& group_sizes) {
  const LoweredProgram program = lower(plan_program(plan, group_sizes));
  const CostTable& costs = *plan.costs;
  const Proof proof = prove(program, &costs, plan.capacity);
  Simulator simulator(program);
  SegmentPrice priced;
  priced.step_ideal = simulator.run_free_links(costs).makespan;
  const Simulation& simulation = simulator.run(costs);
  priced.step = simulation.makespan;
  for (const RankTimes& rank : simulation.ranks) priced.busy.push_back(rank.busy());
  for (const MemoryProof& rank : proof.memory) priced.memory.push_back(rank.peak);
  return priced;
}

/// Without a flush, steps overlap: the time of one is what each further one adds once the pipeline is full.
SegmentPrice steady(const Plan& plan, std::vector<int> groups) {
  const auto count = static_cast<double>(groups.size());
  const SegmentPrice shorter = price(plan, groups);
  groups.insert(groups.end(), groups.begin(), groups.end());
  SegmentPrice longer = price(plan, groups);
  longer.step = (longer.step - shorter.step) / count;
  longer.step_ideal = (longer.step_ideal - shorter.step_ideal) / count;
  for (std::size_t r = 0; r < longer.busy.size(); ++r) {
    longer.busy[r] = (longer.busy[r] - shorter.busy[r]) / count;
  }
  return longer;
}

}  // namespace

std::vector<int> segment_groups(const Schedule& schedule, int stages, int micro_batches) {
  if (schedule.synchronous) return {micro_batches};
  const int to_fill = (stages + micro_batches - 1) / micro_batches;
  return std::vector<int>(static_cast<std::size_t>(std::max(kAsynchronousHorizon, 2 * to_fill)),
                          micro_batches);
}

Prediction predict(const Plan& plan) {
  STAGECRAFT_CHECK(plan.costs, "a plan without costs cannot be predicted");
  const Schedule& schedule = find_schedule(plan.schedule.name);
  const std::vector<int> groups =
      segment_groups(schedule, static_cast<int>(plan.stages.size()), plan.micro_batches);
  const SegmentPrice priced = schedule.synchronous ? price(plan, groups) : steady(plan, groups);

  Prediction prediction;
  prediction.step = priced.step;
  prediction.step_ideal = priced.step_ideal;
  prediction.memory = priced.memory;
  Seconds busy;
  for (const Seconds rank : priced.busy) busy += rank;
  if (priced.step > Seconds{}) {
    prediction.bubble = std::max(0.0, 1 - busy / priced.step / static_cast<double>(priced.busy.size()));
  }
  std::vector<Seconds> compute(priced.busy.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<Rank>& ranks = plan.stages[s].ranks;
    for (const Rank rank : ranks) {
      compute[rank.index()] +=
          plan.compute_time(StageId{s}) / plan.costs->speed_of(rank) / static_cast<double>(ranks.size());
    }
  }
  prediction.bottleneck = *std::max_element(compute.begin(), compute.end());
  return prediction;
}

}  // namespace stagecraft
