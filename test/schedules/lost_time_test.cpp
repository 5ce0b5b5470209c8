// Where the simulator says idle time goes.

#include "schedules/lowering/lowering.h"
#include "schedules/simulator/simulator.h"
#include "test/schedules/draw_times.h"
#include "test/schedules/random_programs.h"
#include "test/schedules/simulator_cases.h"
#include "test/support/catch.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <cmath>
#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

CostTable random_costs_of_shared_links(int stages, int ranks) {
  CostTable costs;
  for (int s = 0; s < stages; ++s) {
    StageCosts stage;
    stage.forward = Seconds(draw_sixteenths(64));
    stage.backward_input = Seconds(draw_sixteenths(64));
    stage.backward_weight = Seconds(draw_sixteenths(64));
    stage.step = Seconds(draw_sixteenths(32));
    stage.parameters = Bytes{*rc::gen::inRange(0, 100)};
    stage.input = stage.output = Bytes{*rc::gen::inRange(0, 100)};
    costs.stages.push_back(stage);
  }
  for (int r = 0; r < ranks; ++r) costs.speed.push_back(1 + draw_sixteenths(16));
  costs.network =
      Network{{{2, Link{Seconds(draw_sixteenths(16)), 64}}, {64, Link{Seconds(draw_sixteenths(16)), 32}}}};
  for (NetworkLevel& level : costs.network.levels) {
    if (*rc::gen::arbitrary<bool>()) level.shared_by = SharedBy::child;
  }
  return costs;
}

void never_negative(const LostTime& lost) {
  for (const Seconds part : {lost.imbalance, lost.dependency, lost.exposed_transfer, lost.blocked_send,
                             lost.memory, lost.barrier}) {
    RC_ASSERT(part.value >= 0);
  }
}

/// As many slots as there are transfers.
LoweringOptions unlimited_slots() {
  LoweringOptions options;
  options.slots_per_channel = 1'000'000;
  return options;
}

}  // namespace

TEST_CASE("busy and lost time are the makespan, for every program and every cost", "[lost_time]") {
  const bool held = rc::check("adds up", [] {
    const LoweredProgram program = lower(random_program().program);
    const CostTable costs =
        random_costs_of_shared_links(program.placement.stages(), program.placement.world());
    Simulator simulator(program);
    const Simulation simulation = simulator.run(costs);
    const std::vector<LostTime> lost = simulator.lost_time(costs);
    const double makespan = simulation.makespan.value;
    for (std::size_t r = 0; r < lost.size(); ++r) {
      never_negative(lost[r]);
      RC_ASSERT(std::abs((simulation.ranks[r].busy() + lost[r].total()).value - makespan) <=
                1e-12 * (1 + makespan) * static_cast<double>(simulator.actions()));
    }
  });
  CHECK(held);
}

TEST_CASE("a part is zero where its cause is absent", "[lost_time]") {
  const bool held = rc::check("absent causes", [] {
    const RandomProgram random = random_program();
    const Placement& placement = random.request.placement;
    const CostTable costs = random_costs_of_shared_links(placement.stages(), placement.world());
    const auto each = [](const LoweredProgram& program, const CostTable& table, const auto& holds) {
      for (const LostTime& lost : Simulator(program).lost_time(table)) {
        never_negative(lost);
        RC_ASSERT(holds(lost));
      }
    };
    const LoweredProgram program = lower(random.program);

    CostTable free = costs;
    for (NetworkLevel& level : free.network.levels) level.link = Link{Seconds{}, kFree};
    each(program, free, [](const LostTime& lost) {
      return lost.exposed_transfer.value == 0 && lost.blocked_send.value == 0 && lost.barrier.value == 0;
    });

    each(lower(random.program, unlimited_slots()), costs,
         [](const LostTime& lost) { return lost.memory.value == 0; });

    const bool collectives =
        random.request.clip || std::any_of(placement.ranks.begin(), placement.ranks.end(),
                                           [](const auto& replicas) { return replicas.size() > 1; });
    if (!collectives) each(program, costs, [](const LostTime& lost) { return lost.barrier.value == 0; });
  });
  CHECK(held);
}

TEST_CASE("ranks with equally much work lose nothing to imbalance", "[lost_time]") {
  const bool held = rc::check("equal", [] {
    const Schedule schedule = *one_stage_a_rank();
    const int stages = *rc::gen::inRange(1, 7);
    CostTable costs = random_costs_of_shared_links(stages, stages);
    costs.stages.assign(costs.stages.size(), costs.stages.front());
    costs.speed.clear();
    const LoweredProgram program = program_of(schedule.name, stages, {*rc::gen::inRange(1, 12)});
    for (const LostTime& lost : Simulator(program).lost_time(costs)) RC_ASSERT(lost.imbalance.value == 0);
  });
  CHECK(held);
}

TEST_CASE("the bubble of equal stages is dependency, (p - 1)(F + B) on every rank", "[lost_time]") {
  for (const char* schedule : {"fill_drain", "1f1b"}) {
    const LoweredProgram program = program_of(schedule, 4, {8});
    for (const LostTime& lost : Simulator(program).lost_time(even_costs(4, 1, 2, 0.5))) {
      CHECK(lost.dependency.value == 3 * (1 + 2));
      CHECK(lost.total() == lost.dependency);
    }
  }
}

TEST_CASE("what waits for a slower rank beyond the bubble is imbalance", "[lost_time]") {
  // Stage 1 takes twice as long. Scaled to 4.5 s per micro-batch on both, each rank would wait 4.5 s.
  const LoweredProgram program = program_of("1f1b", 2, {8});
  CostTable costs = even_costs(2, 1, 2, 0);
  costs.stages[1].forward = Seconds{2};
  costs.stages[1].backward_input = costs.stages[1].backward_weight = Seconds{2};
  Simulator simulator(program);
  const Simulation simulation = simulator.run(costs);
  CHECK(simulation.makespan.value == 1 + 8 * 6 + 2);
  const std::vector<LostTime> lost = simulator.lost_time(costs);
  CHECK(lost[0].dependency.value == Approx(4.5));
  CHECK(lost[0].imbalance.value == Approx(51 - 24 - 4.5));
  CHECK(lost[1].dependency.value == Approx(3));
  CHECK(lost[1].imbalance.value == Approx(0).margin(1e-12));
}

TEST_CASE("a wait is followed through ranks that wait themselves", "[lost_time]") {
  // Links of 5 s: F0 0..1, link 1..6, F1 6..7, link 7..12, F2 12..13, and back likewise: 2 + 5 + 2 + 5 + 2.
  const LoweredProgram program = program_of("fill_drain", 3, {1});
  CostTable costs = slow_links(3);
  costs.loss = Bytes{0};
  const std::vector<LostTime> lost = Simulator(program).lost_time(costs);
  CHECK(lost[0].exposed_transfer.value == 20);  // four hops, though only the last one ends at this rank
  CHECK(lost[0].dependency.value == 2 * (1 + 2));
  CHECK(lost[1].exposed_transfer.value + lost[1].blocked_send.value == 20);
  CHECK(lost[1].dependency.value == 2 * (1 + 2));
  CHECK(lost[2].exposed_transfer.value + lost[2].blocked_send.value == 20);
}

TEST_CASE("a sender that waits for a transfer's end is blocked by it, for a slot by memory", "[lost_time]") {
  Builder b(2);
  b.compute(0, Op::forward, 0).transfer(0, Op::start_send, 0, 1, 0).transfer(0, Op::wait_send, 0, 1, 0);
  b.compute(1, Op::forward, 1).compute(1, Op::backward, 1);
  b.transfer(1, Op::post_receive, 0, 1, 0).transfer(1, Op::wait_receive, 0, 1, 0);
  // Started at 1, posted at 3, on the link 3..8; with a slot it would have been 1..6.
  const std::vector<LostTime> lost = Simulator(b.program_).lost_time(slow_links(2));
  CHECK(lost[0].blocked_send.value == 5);
  CHECK(lost[0].memory.value == 2);
  CHECK(lost[1].exposed_transfer.value == 3);
  CHECK(lost[1].memory.value == 2);
  CHECK(lost[0].total().value == 7);
  CHECK(lost[1].total().value == 5);
}

TEST_CASE("a delay for want of a slot is counted once, not again behind it", "[lost_time]") {
  Builder b(2);
  for (const int m : {0, 1}) b.transfer(0, Op::start_send, 0, 1, m);
  for (const int m : {0, 1}) b.transfer(0, Op::wait_send, 0, 1, m);
  b.transfer(1, Op::post_receive, 0, 1, 1).compute(1, Op::backward, 0).transfer(1, Op::post_receive, 0, 1, 0);
  for (const int m : {0, 1}) b.transfer(1, Op::wait_receive, 0, 1, m);
  // Both started at 0; the first posted at 2: on the link 2..7 and 7..12, with a slot 0..5 and 5..10.
  const std::vector<LostTime> lost = Simulator(b.program_).lost_time(slow_links(2));
  CHECK(lost[0].memory.value == 2);
  CHECK(lost[0].blocked_send.value == 10);
  CHECK(lost[1].memory.value == 2);
  CHECK(lost[1].exposed_transfer.value == 8);
  // With links of no time the second only waits behind the first one's slot.
  const std::vector<LostTime> free = Simulator(b.program_).lost_time(even_costs(2, 1, 2, 0));
  CHECK(free[0].memory.value == 2);
  CHECK(free[0].total().value == 2);
  CHECK(free[1].total().value == 0);
}

TEST_CASE("at a collective the late one's work is dependency, the collective itself is barrier",
          "[lost_time]") {
  Builder b(2);
  b.compute(0, Op::forward, 0).compute(1, Op::forward, 0).compute(1, Op::backward, 0);
  for (const int r : {0, 1}) b.collective(r, Op::agree_norm, -1);
  b.compute(0, Op::backward, 0);
  CostTable costs = even_costs(2, 1, 2, 0);
  costs.network = one_level(2, 0.5, kFree);
  const std::vector<LostTime> lost = Simulator(b.program_).lost_time(costs);  // both have 3 s of work
  CHECK(lost[0].dependency.value == 2);
  CHECK(lost[0].barrier.value == 1);
  CHECK(lost[1].dependency.value == 2);  // rank 0's backward, at the end
  CHECK(lost[1].barrier.value == 1);
}
