#include "schedules/program/consecutive.h"

#include "base/error.h"
#include "schedules/checker/checker.h"
#include "schedules/simulator/simulator.h"
#include "test/schedules/program_grid.h"
#include "test/schedules/random_costs.h"
#include "test/schedules/random_programs.h"
#include "test/schedules/simulator_cases.h"
#include "test/support/catch.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

double makespan_of(const LoweredProgram& step, const CostTable& costs, int times) {
  return simulate(repeated(step, times), costs).makespan.value;
}

bool waits_announced(const LoweredProgram& program) {
  const TransportRules nccl{.sends = TransportRules::Sends::launched};
  return check(program, nullptr, std::nullopt, nccl).accepted();
}

/// All synchronous training programs with equally many micro-batches per replica.
std::vector<GridProgram> steps_of_grid() {
  std::vector<Placement> placements = straight_placements();
  for (const Placement& odd : odd_placements()) placements.push_back(odd);
  std::vector<GridProgram> steps = program_grid(placements);
  std::erase_if(steps, [](const GridProgram& entry) {
    return entry.schedule == nullptr || !entry.schedule->synchronous || !can_be_followed(entry.program);
  });
  return steps;
}

}  // namespace

TEST_CASE("steps one behind the other are safe, and take no more memory than one", "[consecutive]") {
  std::size_t pairs = 0;
  for (const GridProgram& entry : steps_of_grid()) {
    INFO(entry.name);
    const CostTable costs = even_costs(entry.program.placement.stages(), 1, 2, 1);
    const Proof alone = check(entry.program, &costs);
    const LoweredProgram twice = repeated(entry.program, 2);
    const Proof proof = check(twice, &costs);
    INFO(refusal(proof.findings));
    REQUIRE(proof.accepted());
    REQUIRE(twice.slots == entry.program.slots);
    for (std::size_t r = 0; r < proof.memory.size(); ++r) {
      CHECK(proof.memory[r].peak == alone.memory[r].peak);
    }
    CHECK(waits_announced(twice) == waits_announced(entry.program));
    for (const StageProof& stage : proof.stages) {
      CHECK(stage.versions_alive == 1);
      CHECK(stage.staleness_max == 0);
    }
    ++pairs;
  }
  std::printf("%zu steps, each twice in a row\n", pairs);
  CHECK(pairs > 200);
}

TEST_CASE("a short step may follow and be followed", "[consecutive]") {
  for (const Schedule& schedule : schedules()) {
    if (!schedule.synchronous) continue;
    INFO(schedule.name);
    const Placement placement = schedule.place(3, schedule.virtual_stages);
    const auto step = [&](int micro_batches) {
      return lower(schedule.generate({.placement = placement, .group_sizes = {micro_batches}}));
    };
    const LoweredProgram full = step(7), rest = step(2);
    const Proof proof = check(consecutive({&full, &rest, &full}));
    INFO(refusal(proof.findings));
    CHECK(proof.accepted());
  }
}

TEST_CASE("a step that leaves something behind is refused together with the next one", "[consecutive]") {
  const LoweredProgram step = program_of("1f1b", 3, {4});
  SECTION("a slot that is not free") {
    LoweredProgram bad = step;
    auto& list = bad.ranks[1];
    list.erase(std::ranges::find_if(list, [](const Action& action) { return action.op == Op::release; }));
    CHECK_FALSE(check(consecutive({&bad, &step})).accepted());
  }
  SECTION("weights that are not stepped") {
    LoweredProgram bad = step;
    auto& list = bad.ranks[2];
    list.erase(std::ranges::find_if(list, [](const Action& action) { return action.op == Op::step; }));
    CHECK_FALSE(check(consecutive({&bad, &step})).accepted());
  }
  SECTION("a send that nobody waits for") {
    LoweredProgram bad = step;
    auto& list = bad.ranks[0];
    list.erase(std::ranges::find_if(list, [](const Action& action) { return action.op == Op::wait_send; }));
    CHECK_FALSE(check(consecutive({&bad, &step})).accepted());
  }
}

TEST_CASE("steps whose micro-batches do not divide among replicas are not put in a row", "[consecutive]") {
  const LoweredProgram step =
      lower(find_schedule("1f1b").generate({.placement = placement({{0, 1}, {2}}), .group_sizes = {5}}));
  CHECK_FALSE(can_be_followed(step));
  CHECK_THROWS_AS(repeated(step, 2), InputError);
  CHECK(repeated(step, 1) == step);
  const CostTable costs = even_costs(2, 1, 2, 1);
  CHECK(Simulator(step).cycle(costs).value == simulate(step, costs).makespan.value);
}

TEST_CASE("zb_h2 has no bubble where nobody waits between steps", "[consecutive]") {
  for (const int p : {2, 4, 8}) {
    for (const int m : {2 * p, 3 * p}) {
      INFO(fmt::format("p={}, m={}", p, m));
      const CostTable costs = even_costs(p, 1, 2, 0);
      const LoweredProgram step = program_of("zb_h2", p, {m});
      CHECK(Simulator(step).cycle(costs).value == 3.0 * m);
      CHECK(simulate(step, costs).makespan.value == 3.0 * m + p - 1);
      // An agreement of all ranks is a barrier.
      const LoweredProgram agreeing = program_of("zb_h2", p, {m}, true);
      CHECK(Simulator(agreeing).cycle(costs).value == 3.0 * m + p - 1);
      const LoweredProgram straight = program_of("1f1b", p, {m});
      CHECK(Simulator(straight).cycle(costs).value == simulate(straight, costs).makespan.value);
    }
  }
}

TEST_CASE("the cycle is what one more step adds, whatever costs and links are", "[consecutive]") {
  int shorter = 0;
  CHECK(rc::check("cycles", [&] {
    const RandomProgram random = random_program();
    const LoweredProgram step = lower(random.program);
    RC_PRE(step.groups() == 1 && can_be_followed(step));
    const auto seed = *rc::gen::arbitrary<std::uint64_t>();
    const CostTable costs =
        RandomCosts(seed).table(step.placement.stages(), step.placement.world(), seed % 2 == 0);
    const double cycle = Simulator(step).cycle(costs).value;
    const double alone = simulate(step, costs).makespan.value;
    RC_ASSERT(cycle <= alone * (1 + 1e-12));
    constexpr int kSteps = 12;
    const double added = (makespan_of(step, costs, 2 * kSteps) - makespan_of(step, costs, kSteps)) / kSteps;
    RC_LOG() << random.schedule << ": cycle " << cycle << ", added " << added << ", alone " << alone << '\n';
    RC_ASSERT(added <= cycle * 1.002);
    RC_ASSERT(added >= cycle * 0.998);
    if (cycle < alone * 0.999) ++shorter;
  }));
  CHECK(shorter > 0);
}
