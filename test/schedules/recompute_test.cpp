// Recomputation as a pass over any schedule's program: where it puts recomputes, for which micro-batches, and
// what it refuses.

#include "schedules/program/recompute.h"

#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/memory/stage_counts.h"
#include "schedules/program/program_text.h"
#include "schedules/simulator/simulator.h"
#include "test/schedules/random_costs.h"
#include "test/schedules/random_programs.h"
#include "test/support/catch.h"
#include "test/support/full.h"

#include <rapidcheck.h>

#include <algorithm>
#include <string>

namespace stagecraft {
namespace {

std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// What `program` would be without its recomputes.
ScheduleProgram without_recomputes(ScheduleProgram program) {
  for (auto& list : program.ranks) {
    std::erase_if(list, [](const Action& action) { return action.op == Op::recompute; });
  }
  return program;
}

RecomputeSettings random_settings(int stages) {
  return *rc::gen::container<RecomputeSettings>(
      static_cast<std::size_t>(stages),
      rc::gen::element(Recompute::none, Recompute::all, Recompute::all_but_last));
}

}  // namespace

TEST_CASE("a recompute stands directly before the backward, or its input half", "[recompute]") {
  ScheduleRequest request{.placement = Placement::straight(2), .group_sizes = {3}};
  request.recompute = {Recompute::all, Recompute::all_but_last};
  CHECK(to_text(find_schedule("1f1b").generate(request))
            .find("rank 0: L0 F0 L1 F1 R0 B0 L2 F2 R1 B1 R2 B2 S0 P0\n"
                  "rank 1: L0 F0 R0 B0 L1 F1 R1 B1 L2 F2 P0 B2 S0\n") != std::string::npos);
  ScheduleProgram split = program_from_text(
      "stagecraft program 1\nstages 0\ngroups 2\nrank 0: L0 F0 L1 F1 I0 I1 W0 W1 S0 P0\n", "test");
  insert_recomputes(split, {Recompute::all});
  CHECK(to_text(split).find("rank 0: L0 F0 L1 F1 R0 I0 R1 I1 W0 W1 S0 P0\n") != std::string::npos);
  const ScheduleProgram once = split;
  insert_recomputes(split, {Recompute::all});
  CHECK(split == once);  // what stands there is left
}

TEST_CASE("what is repeated changes nothing else of the lowered program", "[recompute]") {
  REQUIRE(rc::check("lowered alike", [] {
    const ScheduleProgram program = random_program().program;
    ScheduleProgram repeated = program;
    insert_recomputes(repeated, random_settings(program.placement.stages()));
    LoweredProgram lowered = lower(repeated);
    for (auto& list : lowered.ranks) {
      std::erase_if(list, [](const Action& action) { return action.op == Op::recompute; });
    }
    RC_ASSERT(lowered == lower(program));
  }));
}

TEST_CASE("a recompute reads the version that its forward read", "[recompute]") {
  ScheduleRequest request{.placement = Placement::straight(2), .group_sizes = {1, 1, 1}};
  request.recompute = {Recompute::all, Recompute::none};
  const auto program = find_schedule("pipedream").generate(request);
  CHECK(to_text(program).find("L2 F2v1 R1 B1 S1 P1 R2v1 B2v1 S2") != std::string::npos);
  CHECK(check(lower(program)).accepted());
}

TEST_CASE("all but the last is of every group, on every replica", "[recompute]") {
  // Two replicas, groups of three and two: the last ones are 1 and 2, then 3 and 4.
  ScheduleRequest request{.placement = {{{Rank{0}, Rank{1}}}}, .group_sizes = {3, 2}};
  request.recompute = {Recompute::all_but_last};
  std::vector<int> repeated;
  for (const auto& list : find_schedule("pipedream").generate(request).ranks) {
    for (const Action& action : list) {
      if (action.op == Op::recompute) repeated.push_back(action.micro_batch.value);
    }
  }
  CHECK(repeated == std::vector<int>{0});
  CHECK(recomputed_share(Recompute::all_but_last, 2, 8) == 0.75);
  CHECK(recomputed_share(Recompute::all_but_last, 4, 3) == 0);
  CHECK(recomputed_share(Recompute::all, 4, 3) == 1);
}

TEST_CASE("settings that match nothing are refused", "[recompute]") {
  ScheduleRequest request{.placement = Placement::straight(3), .group_sizes = {2}};
  request.recompute = {Recompute::all, Recompute::all};
  for (const Schedule& schedule : schedules()) {
    if (schedule.placement == PlacementKind::v) continue;
    CHECK(refusal_of([&] { (void)schedule.generate(request); }) ==
          "recompute settings of 2 stages for 3; give every stage one, or none");
  }
  ScheduleProgram validation = validation_program(Placement::straight(2), 3);
  const RecomputeSettings both(2, Recompute::all);
  CHECK(refusal_of([&] { insert_recomputes(validation, both); }).find("a validation pass keeps nothing") !=
        std::string::npos);
  CHECK_NOTHROW(insert_recomputes(validation, RecomputeSettings(2, Recompute::none)));
}

TEST_CASE("any schedule's program with recomputes is accepted, and is the same without", "[recompute]") {
  int recomputed = 0;
  REQUIRE(rc::check([&] {
    RandomProgram random = random_program();
    const Schedule& schedule = find_schedule(random.schedule);
    random.request.recompute = random_settings(random.request.placement.stages());
    const ScheduleProgram program = schedule.generate(random.request);
    if (!schedule.orders_by_time) RC_ASSERT(without_recomputes(program) == random.program);
    RC_ASSERT(check(lower(program)).accepted());
    const auto held = stage_counts(program);
    const auto before = stage_counts(without_recomputes(program));
    for (std::size_t s = 0; s < held.size(); ++s) {
      RC_ASSERT(held[s].in_flight == before[s].in_flight);
      RC_ASSERT(before[s].kept == before[s].in_flight);
      const Recompute setting = random.request.recompute[s];
      if (setting == Recompute::none) RC_ASSERT(held[s].kept == held[s].in_flight);
      if (setting == Recompute::all) RC_ASSERT(held[s].kept == 1);
      recomputed += setting == Recompute::all ? 1 : 0;
    }
  }));
  CHECK(recomputed > 20);
}

TEST_CASE("orders by time reckon with the recomputes", "[recompute]") {
  // Against orders made without knowing of them: never slower, and faster in a third of the cases.
  int better = 0;
  const auto step_of_seeds = test::stride<std::uint64_t>(5);
  for (std::uint64_t seed = 0; seed < 40; seed += step_of_seeds) {
    for (const char* name : {"zb_h1", "zb_h2", "interleaved_zb", "zb_v", "v_half", "v_min"}) {
      for (const bool clip : {false, true}) {
        const Schedule& schedule = find_schedule(name);
        ScheduleRequest request{
            .placement = schedule.place(3, schedule.virtual_stages), .group_sizes = {8}, .clip = clip};
        const CostTable costs = test::RandomCosts(seed).table(request.placement.stages(), 3, true);
        request.costs = &costs;
        ScheduleProgram without = schedule.generate(request);
        request.recompute.assign(request.placement.ranks.size(), Recompute::all);
        insert_recomputes(without, request.recompute);
        const auto step = [&](const ScheduleProgram& program) {
          const LoweredProgram lowered = lower(program);
          return (clip ? simulate(lowered, costs).makespan : Simulator(lowered).cycle(costs)).value;
        };
        const double known = step(schedule.generate(request));
        const double unknown = step(without);
        INFO(name << ", seed " << seed << (clip ? ", the norm agreed on" : ", ranks going on"));
        // Orders that go on go by the longest span, which the cycle may be a little below.
        CHECK(known <= unknown * (1 + (clip ? 1e-9 : 1e-3)));
        better += known < unknown;
      }
    }
  }
  CHECK(better * step_of_seeds > 100);
}

}  // namespace stagecraft
