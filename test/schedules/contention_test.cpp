// Links that several ranks share.

#include "base/json.h"
#include "schedules/lowering/lowering.h"
#include "schedules/simulator/simulator.h"
#include "test/schedules/random_programs.h"
#include "test/schedules/simulator_cases.h"
#include "test/schedules/ticking_simulator.h"
#include "test/support/catch.h"
#include "test/support/count_allocations.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// Two machines of two devices. Between machines a transfer of 8 bytes takes 5 s.
CostTable two_machines(SharedBy shared_by) {
  CostTable costs = slow_links(4);
  costs.network.levels = {{2, Link{Seconds{1}, 8}}, {2, Link{Seconds{1}, 2}, shared_by}};
  return costs;
}

/// Forward on every rank of the first machine, sent to the other: 0 -> 2 and 1 -> 3.
LoweredProgram two_senders() {
  Builder b(4);
  // Stages in the order that makes 0 and 2, 1 and 3 neighbours.
  b.program_.placement.ranks = {{Rank{0}}, {Rank{2}}, {Rank{1}}, {Rank{3}}};
  for (const auto& [sender, receiver, stage] : {std::tuple(0, 2, 0), {1, 3, 2}}) {
    Action forward{.op = Op::forward, .stage = StageId{stage}, .micro_batch = MicroBatch{0}};
    b.program_.ranks[static_cast<std::size_t>(sender)].push_back(forward);
    b.transfer(receiver, Op::post_receive, stage, stage + 1, 0);
    b.transfer(sender, Op::start_send, stage, stage + 1, 0)
        .transfer(sender, Op::wait_send, stage, stage + 1, 0);
    b.transfer(receiver, Op::wait_receive, stage, stage + 1, 0);
  }
  return std::move(b.program_);
}

int draw_int(int low, int high) { return *rc::gen::inRange(low, high + 1); }

/// Whole seconds throughout, at least one a transfer; parameters of no bytes keep reductions whole.
CostTable whole_costs(int stages, int ranks) {
  CostTable costs;
  for (int s = 0; s < stages; ++s) {
    StageCosts stage;
    stage.forward = Seconds(draw_int(0, 4));
    stage.backward_input = Seconds(draw_int(0, 3));
    stage.backward_weight = Seconds(draw_int(0, 3));
    stage.step = Seconds(draw_int(0, 2));
    stage.input = Bytes{draw_int(0, 4)};
    stage.output = Bytes{draw_int(0, 4)};
    costs.stages.push_back(stage);
  }
  int places = 1;
  while (places < ranks || costs.network.levels.empty()) {
    NetworkLevel level{draw_int(2, 4), Link{Seconds(draw_int(1, 2)), 1}};
    if (*rc::gen::arbitrary<bool>()) level.shared_by = SharedBy::child;
    places *= level.count;
    costs.network.levels.push_back(level);
  }
  costs.loss = Bytes{1};
  return costs;
}

}  // namespace

TEST_CASE("devices with a link each send at the same time, those with one card in turn", "[contention]") {
  const LoweredProgram program = two_senders();
  CHECK(simulate(program, two_machines(SharedBy::pair)).makespan.value == 6);
  const Simulation shared = simulate(program, two_machines(SharedBy::child));
  CHECK(shared.makespan.value == 11);
  CHECK(shared.ranks[2].wait_activation.value == 6);  // of two that are ready at once the lower rank's first
  CHECK(shared.ranks[3].wait_activation.value == 11);
}

TEST_CASE("a card serves in the order of time, not of ranks", "[contention]") {
  const LoweredProgram program = two_senders();
  CostTable costs = two_machines(SharedBy::child);
  costs.stages[0].forward = Seconds{2};  // rank 0 is ready a second after rank 1
  const Simulation shared = simulate(program, costs);
  CHECK(shared.ranks[3].wait_activation.value == 6);
  CHECK(shared.ranks[2].wait_activation.value == 11);
}

TEST_CASE("the card inwards is shared as well, and within a machine nothing is", "[contention]") {
  Builder b(4);
  b.program_.placement.ranks = {{Rank{0}, Rank{1}, Rank{3}}, {Rank{2}}};
  for (const int replica : {0, 1, 2}) {
    const int sender = replica < 2 ? replica : 3;
    b.transfer(2, Op::post_receive, 0, 1, replica);
    b.transfer(sender, Op::start_send, 0, 1, replica).transfer(sender, Op::wait_send, 0, 1, replica);
  }
  for (const int replica : {0, 1, 2}) b.transfer(2, Op::wait_receive, 0, 1, replica);
  CostTable costs = two_machines(SharedBy::child);
  costs.stages.resize(2);
  costs.network.levels[1].count = 2;
  Timeline timeline;
  const Simulation simulation = simulate(b.program_, costs, &timeline);
  CHECK(simulation.makespan.value == 10);
  std::vector<std::pair<int, double>> ends;
  for (const Event& event : timeline.events) {
    if (event.lane == Event::Lane::send) ends.emplace_back(event.rank.value, event.end.value);
  }
  CHECK(ends == std::vector<std::pair<int, double>>{{0, 5}, {1, 10}, {3, 2}});
}

TEST_CASE("free links have no cards", "[contention]") {
  CHECK(Simulator(two_senders()).run_free_links(two_machines(SharedBy::child)).makespan.value == 1);
}

TEST_CASE("a ticking clock sees the same, whatever is shared", "[contention]") {
  const bool held = rc::check("ticks", [] {
    const RandomProgram random = random_program();
    const LoweredProgram program = lower(random.program);
    const int stages = program.placement.stages();
    const CostTable costs = whole_costs(stages, program.placement.world());
    const Ticked ticked = tick(program, costs);
    Simulator simulator(program);
    const Simulation simulation = simulator.run(costs);
    RC_TAG(std::any_of(costs.network.levels.begin(), costs.network.levels.end(),
                       [](const NetworkLevel& level) { return level.shared_by == SharedBy::child; }));
    RC_ASSERT(simulation.makespan.value == ticked.makespan);
    for (std::size_t r = 0; r < ticked.done.size(); ++r) {
      RC_ASSERT(simulation.makespan.value - simulation.ranks[r].idle_end.value == ticked.done[r]);
    }
    RC_ASSERT(simulator.run(costs).makespan == simulation.makespan);
  });
  CHECK(held);
}

TEST_CASE("sharing a link never helps", "[contention]") {
  const bool held = rc::check("slower", [] {
    const LoweredProgram program = lower(random_program().program);
    CostTable costs = whole_costs(program.placement.stages(), program.placement.world());
    Simulator simulator(program);
    const double shared = simulator.run(costs).makespan.value;
    for (NetworkLevel& level : costs.network.levels) level.shared_by = SharedBy::pair;
    RC_ASSERT(simulator.run(costs).makespan.value <= shared);
  });
  CHECK(held);
}

TEST_CASE("a run over shared links allocates nothing once it has been prepared", "[contention]") {
  const LoweredProgram program = program_of("1f1b", 4, {16}, true);
  Simulator simulator(program);
  const CostTable shared = two_machines(SharedBy::child);
  const CostTable own = two_machines(SharedBy::pair);
  const Seconds makespan = simulator.run(shared).makespan;
  const std::size_t before = allocations();
  simulator.run(own);
  const Seconds again = simulator.run(shared).makespan;
  CHECK(allocations() == before);
  CHECK(again == makespan);
}

TEST_CASE("shared_by is read, written and checked", "[contention]") {
  const auto level = [](const std::string& shared) {
    NetworkLevel read;
    json::read_value(
        json::parse_text(R"({"count": 2, "link": {"latency_ms": 1, "bytes_per_second": 2})" + shared + "}",
                         "n.json"),
        {"n.json", ""}, read, {});
    return read;
  };
  CHECK(level("").shared_by == SharedBy::pair);
  CHECK(level(R"(, "shared_by": "pair")").shared_by == SharedBy::pair);
  CHECK(level(R"(, "shared_by": "child")").shared_by == SharedBy::child);
  CHECK(json::write(level(R"(, "shared_by": "child")"))["shared_by"] == "child");
  CHECK_THROWS_AS(level(R"(, "shared_by": "machine")"), InputError);
  CHECK_THROWS_AS(level(R"(, "shared": "child")"), InputError);
}
