// The chain that a makespan is made of, and that bounds every other makespan of its program.

#include "schedules/costs/collectives.h"
#include "schedules/costs/traffic.h"
#include "schedules/lowering/lowering.h"
#include "schedules/simulator/simulator.h"
#include "test/schedules/draw_times.h"
#include "test/schedules/random_programs.h"
#include "test/schedules/simulator_cases.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

void draw_stages(CostTable& costs, int stages) {
  costs.stages.clear();
  for (int s = 0; s < stages; ++s) {
    StageCosts stage;
    stage.forward = Seconds(draw_sixteenths(64));
    stage.backward_input = Seconds(draw_sixteenths(64));
    stage.backward_weight = Seconds(draw_sixteenths(64));
    stage.step = Seconds(draw_sixteenths(32));
    stage.parameters = Bytes{*rc::gen::inRange(0, 200)};
    stage.input = stage.output = Bytes{*rc::gen::inRange(0, 100)};
    costs.stages.push_back(stage);
  }
}

CostTable random_costs_of_own_links(int stages, int ranks) {
  CostTable costs;
  draw_stages(costs, stages);
  for (int r = 0; r < ranks; ++r) costs.speed.push_back(1 + draw_sixteenths(16));
  costs.network =
      Network{{{2, Link{Seconds(draw_sixteenths(16)), 64}}, {64, Link{Seconds(draw_sixteenths(16)), 32}}}};
  return costs;
}

/// What the chain takes, summed up by itself.
double sum(const CriticalPath& path, const Placement& placement, const CostTable& costs) {
  double seconds = 0;
  for (const CriticalPath::Computing& c : path.computing) {
    const StageCosts& stage = costs.stages[c.stage.index()];
    const Seconds backward = stage.backward_input + stage.backward_weight;
    const Seconds work = stage.forward * c.all_forwards() + backward * c.backwards +
                         stage.backward_input * c.input_parts + stage.backward_weight * c.weight_parts +
                         stage.step * c.steps;
    seconds += (work / costs.speed_of(c.rank)).value;
  }
  for (const CriticalPath::Moving& m : path.moving) {
    seconds += m.transfers *
               costs.network.between(m.sender, m.receiver).time(payload_bytes(costs, m.payload, m.to)).value;
  }
  std::vector<Rank> all;
  for (int r = 0; r < placement.world(); ++r) all.emplace_back(r);
  for (const CriticalPath::Meeting& m : path.meeting) {
    std::vector<Rank> members = all;
    if (m.stage.valid()) members = placement.ranks[m.stage.index()];
    std::sort(members.begin(), members.end());
    const Seconds time =
        m.stage.valid() ? all_reduce(costs.network, members, costs.stages[m.stage.index()].parameters).time()
                        : agreement_time(costs.network, members);
    seconds += m.times * time.value;
  }
  return seconds;
}

}  // namespace

TEST_CASE("the critical path adds up to the makespan", "[critical_path]") {
  const bool held = rc::check("adds up", [] {
    const LoweredProgram program = lower(random_program().program);
    const CostTable costs = random_costs_of_own_links(program.placement.stages(), program.placement.world());
    Simulator simulator(program);
    const double makespan = simulator.run(costs).makespan.value;
    const CriticalPath path = simulator.critical_path(costs);
    RC_ASSERT(path.length.value == makespan);
    RC_ASSERT(std::abs(sum(path, program.placement, costs) - makespan) <= 1e-9 * (1 + makespan));
  });
  CHECK(held);
}

TEST_CASE("the path of some costs is a lower bound for all others, with shared cards as well",
          "[critical_path]") {
  const bool held = rc::check("bounds", [] {
    const LoweredProgram program = lower(random_program().program);
    const int stages = program.placement.stages();
    CostTable costs = random_costs_of_own_links(stages, program.placement.world());
    Simulator simulator(program);
    const CriticalPath path = simulator.critical_path(costs);
    draw_stages(costs, stages);
    for (NetworkLevel& level : costs.network.levels) {
      if (*rc::gen::arbitrary<bool>()) level.shared_by = SharedBy::child;
    }
    const double makespan = simulator.run(costs).makespan.value;
    const double bound = sum(path, program.placement, costs);
    RC_CLASSIFY(bound > 0.9 * makespan, "close");
    RC_ASSERT(bound <= makespan * (1 + 1e-9) + 1e-12);
  });
  CHECK(held);
}

TEST_CASE("the critical path of a balanced pipeline goes down, through the last stage and up again",
          "[critical_path]") {
  // Two stages, three micro-batches, forwards of 1 s and backwards of 2 s, transfers of 5 s.
  const LoweredProgram program = program_of("fill_drain", 2, {3});
  Simulator simulator(program);
  const CriticalPath path = simulator.critical_path(slow_links(2));
  int transfers = 0;
  for (const CriticalPath::Moving& moving : path.moving) transfers += moving.transfers;
  CHECK(path.length == simulator.run(slow_links(2)).makespan);
  CHECK(transfers >= 2);
  CHECK(path.computing.size() == 2);
  CHECK(path.meeting.empty());
}
