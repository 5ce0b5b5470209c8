#include "schedules/simulator/simulator.h"

#include "base/error.h"
#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"
#include "test/schedules/random_programs.h"
#include "test/schedules/simulator_cases.h"
#include "test/support/catch.h"
#include "test/support/count_allocations.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

void parts_make_the_makespan(const Simulation& simulation) {
  for (const RankTimes& rank : simulation.ranks) {
    const double total = (rank.busy() + rank.waiting() + rank.idle_end).value;
    CHECK(total == Approx(simulation.makespan.value));
  }
}

}  // namespace

TEST_CASE("synchronous schedules take (m + p - 1)(F + B) + S with free links, to the digit", "[simulator]") {
  const double f = 1.5, b = 2.25, s = 0.5;
  for (const char* schedule : {"fill_drain", "1f1b"}) {
    for (int p = 1; p <= 8; ++p) {
      for (const int m : {1, 2, 3, 4, 7, 8, 16, 33}) {
        INFO(fmt::format("{}, p={}, m={}", schedule, p, m));
        const LoweredProgram program = program_of(schedule, p, {m});
        const Simulation simulation = simulate(program, even_costs(p, f, b, s));
        CHECK(simulation.makespan.value == (m + p - 1) * (f + b) + s);
        CHECK(simulation.bubble == Approx(1 - (m * (f + b) + s) / ((m + p - 1) * (f + b) + s)).margin(1e-12));
        for (const RankTimes& rank : simulation.ranks) {
          CHECK(rank.forward.value == m * f);
          CHECK(rank.backward.value == m * b);
          CHECK(rank.step.value == s);
        }
        parts_make_the_makespan(simulation);
      }
    }
  }
}

TEST_CASE("the bubble without a step is (p - 1) / (m + p - 1)", "[simulator]") {
  for (int p = 1; p <= 6; ++p) {
    for (const int m : {1, 4, 12}) {
      const Simulation simulation = simulate(program_of("1f1b", p, {m}), even_costs(p, 1, 2, 0));
      CHECK(simulation.bubble == Approx((p - 1.0) / (m + p - 1.0)).margin(1e-12));
    }
  }
}

TEST_CASE("pipedream fills once: (n + p - 1)(F + B), and a step costs every group its time", "[simulator]") {
  const double f = 1.0, b = 2.0, s = 0.25;
  for (int p = 1; p <= 6; ++p) {
    for (const int width : {1, 2, 4, 8}) {
      INFO(fmt::format("p={}, group of {}", p, width));
      const auto makespan = [&](int groups, double step) {
        const std::vector<int> sizes(static_cast<std::size_t>(groups), width);
        return simulate(program_of("pipedream", p, sizes), even_costs(p, f, b, step)).makespan.value;
      };
      CHECK(makespan(6, 0) == (6 * width + p - 1) * (f + b));
      // Steady state: one more group is one more group's work on any stage, nothing else.
      CHECK(makespan(24, s) - makespan(23, s) == Approx(width * (f + b) + s));
    }
  }
}

TEST_CASE("a transfer delays the next stage by latency + bytes / bandwidth", "[simulator]") {
  // F 0..1, link 1..6, F 6..7, B 7..9, link 9..14, B 14..16
  const LoweredProgram program = program_of("fill_drain", 2, {1});
  CostTable costs = slow_links(2);
  costs.loss = Bytes{0};
  Timeline timeline;
  const Simulation simulation = simulate(program, costs, &timeline);
  CHECK(simulation.makespan.value == 16);
  CHECK(simulation.ranks[0].wait_gradient.value == 13);
  CHECK(simulation.ranks[1].wait_activation.value == 6);
  CHECK(simulation.ranks[1].idle_end.value == 7 - simulation.ranks[1].wait_send.value);
  CHECK(Simulator(program).run_free_links(costs).makespan.value == 6);
  parts_make_the_makespan(simulation);
}

TEST_CASE("activation and gradient sizes are those of their boundary", "[simulator]") {
  const LoweredProgram program = program_of("fill_drain", 3, {1});
  CostTable costs = slow_links(3);
  costs.network = one_level(3, 0, 1);
  costs.loss = Bytes{0};
  costs.stages[0].input = Bytes{1000};  // loaded, never sent
  costs.stages[0].output = costs.stages[1].input = Bytes{10};
  costs.stages[1].output = costs.stages[2].input = Bytes{100};
  costs.stages[2].output = Bytes{10000};
  CHECK(simulate(program, costs).makespan.value == 3 * (1 + 2) + 2 * (10 + 100));
}

TEST_CASE("transfers of one direction go one after the other, in the order they were started",
          "[simulator]") {
  Builder b(2);
  b.transfer(1, Op::post_receive, 0, 1, 0).transfer(1, Op::post_receive, 0, 1, 1);
  b.compute(0, Op::forward, 0).transfer(0, Op::start_send, 0, 1, 0);
  b.compute(0, Op::forward, 1).transfer(0, Op::start_send, 0, 1, 1);
  b.transfer(0, Op::wait_send, 0, 1, 0).transfer(0, Op::wait_send, 0, 1, 1);
  b.transfer(1, Op::wait_receive, 0, 1, 0).compute(1, Op::forward, 0);
  b.transfer(1, Op::wait_receive, 0, 1, 1).compute(1, Op::forward, 1);
  // Sent at 1 and 2; on the link 1..6 and 6..11.
  Timeline timeline;
  const Simulation simulation = simulate(b.program_, slow_links(2), &timeline);
  CHECK(simulation.makespan.value == 12);
  CHECK(simulation.ranks[0].wait_send.value == 9);  // 2..6, 6..11
  CHECK(simulation.ranks[1].wait_activation.value == 10);
  std::vector<std::pair<double, double>> on_link;
  for (const Event& event : timeline.events) {
    if (event.lane == Event::Lane::send) on_link.emplace_back(event.begin.value, event.end.value);
  }
  CHECK(on_link == std::vector<std::pair<double, double>>{{1, 6}, {6, 11}});
}

TEST_CASE("the two directions of a link do not disturb each other", "[simulator]") {
  Builder b(2);
  b.transfer(1, Op::post_receive, 0, 1, 0).transfer(0, Op::post_receive, 1, 0, 0);
  b.transfer(0, Op::start_send, 0, 1, 0).transfer(1, Op::start_send, 1, 0, 0);
  b.transfer(0, Op::wait_receive, 1, 0, 0).transfer(1, Op::wait_receive, 0, 1, 0);
  b.transfer(0, Op::wait_send, 0, 1, 0).transfer(1, Op::wait_send, 1, 0, 0);
  CHECK(simulate(b.program_, slow_links(2)).makespan.value == 5);
}

TEST_CASE("a transfer waits for its receive, its sender does not before it asks", "[simulator]") {
  Builder b(2);
  b.transfer(0, Op::start_send, 0, 1, 0).compute(0, Op::forward, 0).transfer(0, Op::wait_send, 0, 1, 0);
  b.compute(1, Op::backward, 0).transfer(1, Op::post_receive, 0, 1, 0);
  b.transfer(1, Op::wait_receive, 0, 1, 0);
  const Simulation simulation = simulate(b.program_, slow_links(2));
  CHECK(simulation.makespan.value == 7);  // posted at 2, on the link 2..7
  CHECK(simulation.ranks[0].forward.value == 1);
  CHECK(simulation.ranks[0].wait_send.value == 6);
  CHECK(simulation.ranks[1].wait_activation.value == 5);
}

TEST_CASE("agree_norm ends for all 2 ceil(log2 P) latencies after the last has come", "[simulator]") {
  for (const auto& [ranks, rounds] : {std::pair{1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}}) {
    Builder b(ranks);
    for (int r = 0; r < ranks; ++r) b.compute(r, Op::forward, 0).collective(r, Op::agree_norm, -1);
    CostTable costs = even_costs(ranks, 1, 2, 0);
    costs.stages.back().forward = Seconds{4};
    costs.network = one_level(ranks, 0.5, kFree);
    const Simulation simulation = simulate(b.program_, costs);
    INFO(ranks);
    CHECK(simulation.makespan.value == 4 + 2 * rounds * 0.5);
    CHECK(simulation.ranks[0].wait_other.value == simulation.makespan.value - (ranks == 1 ? 4 : 1));
    parts_make_the_makespan(simulation);
  }
}

TEST_CASE("reduce takes the faster of a ring and an all-reduce level by level", "[simulator]") {
  Builder b(4);
  b.program_.placement.ranks = {{Rank{0}, Rank{1}, Rank{2}, Rank{3}}};
  for (int r = 0; r < 4; ++r) {
    Action action;
    action.op = Op::reduce;
    action.stage = StageId{0};
    action.group = Group{0};
    b.program_.ranks[static_cast<std::size_t>(r)].push_back(action);
  }
  CostTable costs = even_costs(1, 1, 2, 0);
  costs.stages[0].parameters = Bytes{1024};
  costs.network.levels = {{4, Link{Seconds{0.25}, 256}}};
  CHECK(simulate(b.program_, costs).makespan.value == 2 * 3 / 4.0 * 1024 / 256 + 2 * 3 * 0.25);
  // Two machines of two devices.
  costs.network.levels = {{2, Link{Seconds{0.25}, 4096}}, {2, Link{Seconds{1}, 256}}};
  CHECK(simulate(b.program_, costs).makespan.value == 2 * (0.25 + 512.0 / 4096) + 2 * (1 + 256.0 / 256));
  CHECK(Simulator(b.program_).run_free_links(costs).makespan.value == 0);
}

TEST_CASE("a reduction overlaps with what stands between its last backward and its reduce", "[simulator]") {
  // Two replicas of two stages. Stage 1's reduction is under way from 2 to 5, stage 0's from 4 to 7.
  Builder b(2);
  b.program_.placement.ranks = {{Rank{0}, Rank{1}}, {Rank{0}, Rank{1}}};
  for (auto& list : b.program_.ranks) {
    for (const Op op : {Op::backward, Op::reduce}) {
      for (const int stage : {1, 0}) {
        list.push_back({.op = op, .stage = StageId{stage}, .micro_batch = MicroBatch{0}, .group = Group{0}});
      }
    }
  }
  CostTable costs = even_costs(2, 1, 2, 0);
  for (StageCosts& stage : costs.stages) stage.parameters = Bytes{2};
  costs.network = one_level(2, 0.5, 1);  // 2 (0.5 + 1) s
  const Simulation simulation = simulate(b.program_, costs);
  CHECK(simulation.makespan.value == 7);
  CHECK(simulation.ranks[0].wait_other.value == 3);
  // One that is late keeps the other from ending, not from going on before.
  costs.speed = {1, 0.5};
  const Simulation uneven = simulate(b.program_, costs);
  CHECK(uneven.makespan.value == 8 + 3);
  CHECK(uneven.ranks[0].wait_other.value == 11 - 4);
  const std::vector<LostTime> lost = Simulator(b.program_).lost_time(costs);
  CHECK(lost[0].barrier.value == 3 + 3);  // stage 1's 4..7, stage 0's 8..11
  CHECK(lost[0].total().value == 7);
  CHECK(lost[1].total().value == 3);
  // Timelines have them from their beginning, on every member, also where nobody waits.
  Timeline timeline;
  (void)simulate(b.program_, costs, &timeline);
  std::vector<std::pair<double, double>> under_way;
  for (const Event& event : timeline.events) {
    if (event.lane == Event::Lane::send) under_way.emplace_back(event.begin.value, event.end.value);
  }
  CHECK(under_way == std::vector<std::pair<double, double>>{{4, 7}, {8, 11}, {4, 7}, {8, 11}});
}

TEST_CASE("recompute costs a forward, halves of a backward their own time, a fast rank less", "[simulator]") {
  Builder b(2);
  b.compute(0, Op::forward, 0).compute(0, Op::recompute, 0);
  b.compute(0, Op::backward_input, 0).compute(0, Op::backward_weight, 0).compute(0, Op::step, 0);
  CostTable costs = even_costs(2, 1, 2, 8);
  costs.stages[0].backward_weight = Seconds{3};
  costs.speed = {2, 1};
  const Simulation simulation = simulate(b.program_, costs);
  CHECK(simulation.ranks[0].forward.value == 1);
  CHECK(simulation.ranks[0].backward.value == 2);
  CHECK(simulation.ranks[0].step.value == 4);
  CHECK(simulation.ranks[1].idle_end.value == 7);
}

TEST_CASE("a program that cannot finish is refused", "[simulator]") {
  Builder crossed(2);  // each sends before it posts: rendezvous sends wait for each other
  for (const int rank : {0, 1}) {
    const int peer = 1 - rank;
    crossed.transfer(rank, Op::start_send, rank, peer, 0).transfer(rank, Op::wait_send, rank, peer, 0);
    crossed.transfer(rank, Op::post_receive, peer, rank, 0).transfer(rank, Op::wait_receive, peer, rank, 0);
  }
  CHECK_THROWS_AS(simulate(crossed.program_, slow_links(2)), RefusedError);
  try {
    (void)simulate(crossed.program_, slow_links(2));
  } catch (const RefusedError& error) {
    CHECK(std::string(error.what()).find("rank 0") != std::string::npos);
    CHECK(std::string(error.what()).find("rank 1") != std::string::npos);
  }
  Builder unsent(2);
  unsent.transfer(1, Op::post_receive, 0, 1, 0).transfer(1, Op::wait_receive, 0, 1, 0);
  CHECK_THROWS_AS(simulate(unsent.program_, slow_links(2)), RefusedError);
}

TEST_CASE("costs for another number of stages are a defect of the caller", "[simulator]") {
  CHECK_THROWS_AS(simulate(program_of("1f1b", 3, {4}), even_costs(2, 1, 2, 0)), InternalError);
}

TEST_CASE("a simulator is priced again and again without allocating", "[simulator]") {
  const LoweredProgram program = program_of("1f1b", 4, {16}, true);
  Simulator simulator(program);
  const CostTable first = slow_links(4);
  const CostTable second = even_costs(4, 1, 2, 1);
  const Seconds makespan = simulator.run(first).makespan;
  const std::size_t before = test::allocations();
  simulator.run(second);
  simulator.run_free_links(first);
  simulator.run(first);
  CHECK(test::allocations() == before);
  CHECK(simulator.run(first).makespan == makespan);  // nothing is left over from the runs between
  std::size_t actions = 0;
  for (const auto& rank : program.ranks) actions += rank.size();
  CHECK(simulator.actions() == actions);
}

TEST_CASE("the timeline is what was priced", "[simulator]") {
  const LoweredProgram program = program_of("1f1b", 3, {5}, true);
  Timeline timeline;
  timeline.title = "kept";
  timeline.events.resize(7);  // replaced
  const Simulation simulation = simulate(program, slow_links(3), &timeline);
  CHECK(timeline.title == "kept");
  CHECK(timeline.rank_names ==
        std::vector<std::string>{"rank 0: stage 0", "rank 1: stage 1", "rank 2: stage 2"});
  std::vector<RankTimes> sums(3);
  Rank rank{0};
  Seconds busy_until;
  std::vector<Seconds> link_until(3);  // by receiver
  for (const Event& event : timeline.events) {
    REQUIRE(event.rank >= rank);
    if (event.rank != rank) {
      rank = event.rank;
      busy_until = Seconds{};
      link_until.assign(3, Seconds{});
    }
    REQUIRE(event.end >= event.begin);
    Seconds& until =
        event.lane == Event::Lane::compute ? busy_until : link_until[event.action.tag.to.index()];
    CHECK(event.begin >= until);  // nothing overlaps on a lane
    until = event.end;
    RankTimes& sum = sums[event.rank.index()];
    const Seconds took = event.end - event.begin;
    switch (event_kind(event)) {
      case EventKind::forward:
        sum.forward += took;
        break;
      case EventKind::backward:
        sum.backward += took;
        break;
      case EventKind::wait:
        (event.action.op == Op::wait_send                  ? sum.wait_send
         : event.action.tag.payload == Payload::activation ? sum.wait_activation
         : event.action.tag.payload == Payload::gradient   ? sum.wait_gradient
                                                           : sum.wait_other) += took;
        break;
      case EventKind::collective:
        sum.wait_other += took;
        break;
      default:
        break;
    }
  }
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(sums[r].forward.value == Approx(simulation.ranks[r].forward.value));
    CHECK(sums[r].backward.value == Approx(simulation.ranks[r].backward.value));
    CHECK(sums[r].wait_activation.value == Approx(simulation.ranks[r].wait_activation.value));
    CHECK(sums[r].wait_gradient.value == Approx(simulation.ranks[r].wait_gradient.value));
    CHECK(sums[r].wait_send.value == Approx(simulation.ranks[r].wait_send.value).margin(1e-9));
    CHECK(sums[r].wait_other.value == Approx(simulation.ranks[r].wait_other.value));
  }
}

TEST_CASE("no makespan beats the busiest rank or the longest chain of one micro-batch", "[simulator]") {
  const bool held = rc::check("bounds", [] {
    const int p = *rc::gen::inRange(1, 7);
    const int m = *rc::gen::inRange(1, 17);
    const std::string schedule = (*one_stage_a_rank()).name;
    const auto seconds = [] { return Seconds{*rc::gen::inRange(0, 1000) / 128.0}; };
    CostTable costs = even_costs(p, 0, 0, 0);
    double chain = 0, busiest = 0;
    for (StageCosts& stage : costs.stages) {
      stage.forward = seconds();
      stage.backward_input = seconds();
      stage.backward_weight = seconds();
      stage.step = seconds();
      stage.input = Bytes{*rc::gen::inRange(0, 4096)};
    }
    for (std::size_t s = 0; s + 1 < costs.stages.size(); ++s)
      costs.stages[s].output = costs.stages[s + 1].input;
    const Link link{seconds(), *rc::gen::inRange(1, 4096) / 2.0};
    costs.network = Network{{NetworkLevel{8, link}}};
    const LoweredProgram program = program_of(schedule, p, {m});
    const bool split = std::any_of(program.ranks[0].begin(), program.ranks[0].end(),
                                   [](const Action& action) { return action.op == Op::backward_input; });
    for (std::size_t s = 0; s < costs.stages.size(); ++s) {
      const StageCosts& stage = costs.stages[s];
      const double work = (stage.forward + stage.backward_input + stage.backward_weight).value;
      busiest = std::max(busiest, m * work + stage.step.value);
      chain += work;
      // Of a split backward only stage 0's weight half is at the end of the chain.
      if (split && s > 0) chain -= stage.backward_weight.value;
      if (s > 0) chain += 2 * link.time(stage.input).value;
    }
    chain += costs.stages.front().step.value;
    Simulator simulator(program);
    const Simulation priced = simulator.run(costs);
    const Simulation free = simulator.run_free_links(costs);
    const double slack = 1e-9 * (1 + priced.makespan.value);
    RC_ASSERT(priced.makespan.value >= busiest - slack);
    RC_ASSERT(priced.makespan.value >= chain - slack);
    RC_ASSERT(free.makespan.value <= priced.makespan.value + slack);
    RC_ASSERT(free.makespan.value >= busiest - slack);
    for (const Simulation* simulation : {&priced, &free}) {
      RC_ASSERT(simulation->bubble >= -1e-9);
      RC_ASSERT(simulation->bubble <= 1.0);
      for (const RankTimes& rank : simulation->ranks) {
        const double total = (rank.busy() + rank.waiting() + rank.idle_end).value;
        RC_ASSERT(std::abs(total - simulation->makespan.value) <= slack);
      }
    }
  });
  CHECK(held);
}

TEST_CASE("lowering gives as many slots as the schedule needs not to be slowed down", "[simulator]") {
  std::size_t saved = 0;
  REQUIRE(rc::check([&] {
    const ScheduleProgram program = random_program().program;
    CostTable costs;
    costs.network.levels = {{program.placement.world(), Link{Seconds{0}, 1e18}}};
    costs.stages.assign(static_cast<std::size_t>(program.placement.stages()), StageCosts{});
    for (StageCosts& stage : costs.stages) {
      stage.forward = stage.backward_input = stage.backward_weight = Seconds{1};
    }
    const LoweredProgram lowered = lower(program);
    const LoweredProgram roomy = lower(program, {.extra_slots = 1000});
    RC_ASSERT(simulate(lowered, costs).makespan == simulate(roomy, costs).makespan);
    for (std::size_t r = 0; r < lowered.slots.size(); ++r) {
      saved += roomy.slots[r].size() - lowered.slots[r].size();
    }
  }));
  CHECK(saved > 0);
}
