// The search's memory bound against the proof.

#include "partitioner/plan/stage_memory.h"

#include "partitioner/plan/plan.h"
#include "schedules/generators/registry.h"
#include "test/partitioner/random_profile.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

namespace stagecraft {

TEST_CASE("the search never believes a stage bigger than the proof does", "[stage_memory]") {
  std::int64_t bound = 0;
  std::int64_t proved = 0;
  REQUIRE(rc::check("bound <= proof", [&] {
    const int stages = *rc::gen::inRange(1, 5);
    const Schedule schedule = *rc::gen::suchThat(
        rc::gen::elementOf(schedules()), [](const Schedule& s) { return s.placement != PlacementKind::v; });
    Plan plan;
    plan.schedule.name = schedule.name;
    plan.schedule.vertical_sync = schedule.takes_vertical_sync && *rc::gen::arbitrary<bool>();
    plan.micro_batches = *rc::gen::inRange(schedule.synchronous ? 1 : stages, 7);
    CostTable& costs = plan.costs.emplace();
    costs.network.levels = {{stages, Link{}}};
    const Measurement m = test::random_measurement(stages * 2);
    for (int s = 0; s < stages; ++s) {
      const Recompute recompute = *rc::gen::element(Recompute::none, Recompute::all, Recompute::all_but_last);
      plan.stages.push_back({2 * s, 2 * s + 2, {Rank{s}}, recompute});
      costs.stages.push_back(stage_costs(m, 2 * s, 2 * s + 2, 2));
    }
    costs.stages.back().output = Bytes{};
    costs.stages.back().output_kept = false;
    const Prediction prediction = predict(plan);
    const auto counts =
        stage_counts(plan_program(plan, segment_groups(schedule, stages, plan.micro_batches)));
    for (int s = 0; s < stages; ++s) {
      const auto i = static_cast<std::size_t>(s);
      const Bytes least = StageMemory(costs.stages[i], s + 1 == stages).peak(counts[i]);
      RC_ASSERT(least.value <= prediction.memory[i].value);
      bound += least.value;
      proved += prediction.memory[i].value;
    }
  }));
  // And it is no idle bound: slots beyond those in flight and sends under way are what it lacks, which is
  // more of the whole where activations are recomputed.
  CHECK(static_cast<double>(bound) > 0.65 * static_cast<double>(proved));
}

TEST_CASE("the table holds what stage_costs says", "[stage_memory]") {
  REQUIRE(rc::check("table", [] {
    const Measurement m = test::random_measurement(6);
    const StageMemoryTable table(m, 2);
    const int first = *rc::gen::inRange(0, 6);
    const int last = *rc::gen::inRange(first + 1, 7);
    const int in_flight = *rc::gen::inRange(1, 5);
    const StageCounts counts{in_flight, *rc::gen::inRange(1, in_flight + 1), *rc::gen::inRange(0, 3),
                             *rc::gen::inRange(1, 4)};
    RC_ASSERT(table.at(first, last).peak(counts).value ==
              StageMemory(stage_costs(m, first, last, 2), last == 6).peak(counts).value);
  }));
}

}  // namespace stagecraft
