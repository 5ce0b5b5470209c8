// Plans of models whose first layers are frozen.

#include "base/json.h"
#include "partitioner/search/planner.h"
#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "test/partitioner/every_cuts.h"
#include "test/partitioner/example.h"
#include "test/partitioner/random_profile.h"
#include "test/support/catch.h"

#include <algorithm>

namespace stagecraft {
namespace {

using Catch::Matchers::ContainsSubstring;
using test::example;
using test::machine;

/// The example, whose first layers have no trained weight.
Profile frozen_example(int count) {
  Profile profile = example();
  for (Measurement& measurement : profile.measurements) {
    for (int i = 0; i < count; ++i) test::freeze(measurement.layers[to_size(i)]);
  }
  validate(profile, "made");
  return profile;
}

PlanRequest request_of(const std::string& schedule, int stages) {
  PlanRequest request;
  request.micro_batch_size = 8;
  request.micro_batches = 8;
  request.stages = stages;
  request.schedule.name = schedule;
  return request;
}

TEST_CASE("a plan says from which stage on there are gradients, and its program is without the others",
          "[frozen_plans]") {
  const Profile profile = frozen_example(5);
  PlanRequest request = request_of("1f1b", 3);
  const auto from = [&](const std::vector<int>& cuts) {
    request.cuts = cuts;
    return make_plan(profile, machine(4), request).best.plan.gradient_from.value;
  };
  CHECK(from({2, 5}) == 2);
  CHECK(from({2, 6}) == 1);
  CHECK(from({5, 7}) == 1);
  CHECK(from({6, 7}) == 0);
  request.cuts = {2, 5};
  const Plan plan = make_plan(profile, machine(4), request).best.plan;
  CHECK(json::read<Plan>(json::write(plan), {}).gradient_from == StageId{2});
  CHECK(plan_program(plan, {8}).gradient_from == StageId{2});
  CHECK(check(lower(plan_program(plan, {8})), &*plan.costs).accepted());
  Plan wrong = plan;
  wrong.gradient_from = StageId{3};
  CHECK_THROWS_WITH(validate(wrong, "p.json"),
                    ContainsSubstring("p.json: /gradient_from: gradients begin at stage 3"));
}

TEST_CASE("frozen layers cost their forward alone: less time, less memory and fewer transfers",
          "[frozen_plans]") {
  PlanRequest request = request_of("1f1b", 2);
  request.cuts = {5};
  const Plan whole = make_plan(example(), machine(2), request).best.plan;
  const Plan frozen = make_plan(frozen_example(5), machine(2), request).best.plan;
  CHECK(frozen.costs->stages[0].backward_input == Seconds{});
  CHECK(frozen.costs->stages[0].kept_for_input == Bytes{});
  CHECK(frozen.costs->stages[0].optimizer_state == Bytes{});
  CHECK(frozen.costs->stages[0].forward == whole.costs->stages[0].forward);
  CHECK(frozen.predicted->step < whole.predicted->step);
  CHECK(frozen.predicted->memory[0] < whole.predicted->memory[0]);
  // What a first layer behind frozen ones need not make: a gradient of its input.
  CHECK(frozen.costs->stages[1].backward_peak <= whole.costs->stages[1].backward_peak);
}

TEST_CASE("no cuts are faster than those that are found, and the order of one searched for is carried",
          "[frozen_plans]") {
  const char* schedule = GENERATE("1f1b", "fill_drain", "zb_h1", "pipedream");
  // Few micro-batches and many frozen layers: there a frozen stage goes on with the next step's forwards.
  const int count = GENERATE(2, 6, 8), micro_batches = GENERATE(2, 3, 8);
  const Profile profile = frozen_example(count);
  PlanRequest request = request_of(schedule, 3);
  request.micro_batches = micro_batches;
  const PlanResult result = make_plan(profile, machine(3), request);
  const double step = result.best.plan.predicted->step.value;
  for (int a = 1; a < 9; ++a) {
    for (int b = a + 1; b < 10; ++b) {
      request.cuts = {a, b};
      const double other = make_plan(profile, machine(3), request).best.plan.predicted->step.value;
      INFO(schedule << ", " << count << " frozen, " << micro_batches << " micro-batches, cuts " << a << ", "
                    << b);
      CHECK(step <= other * (1 + 1e-6));
      if (result.proof) CHECK(result.proof->bound.value <= other * (1 + 1e-9));
    }
  }
  if (std::string(schedule) != "1f1b") return;
  request.cuts.clear();
  request.schedule.name = "auto";
  CHECK_NOTHROW(validate(make_plan(profile, machine(3), request).best.plan, "made"));
}

TEST_CASE("a cap that only frozen stages meet is met", "[frozen_plans]") {
  const Profile profile = frozen_example(6);
  PlanRequest request = request_of("1f1b", 3);
  request.cuts = {3, 6};
  const Plan plan = make_plan(profile, machine(3), request).best.plan;
  Cluster cluster = machine(3);
  const Bytes most = *std::ranges::max_element(plan.predicted->memory);
  cluster.memory = most;
  cluster.memory_reserve = Bytes{};
  request.cuts.clear();
  const Plan within = make_plan(profile, cluster, request).best.plan;
  CHECK(*std::ranges::max_element(within.predicted->memory) <= most);
}

TEST_CASE("a profile is refused whose frozen layers have a backward, weights or layers before them",
          "[frozen_plans]") {
  const auto refused = [](const auto& change, const std::string& why) {
    Profile profile = frozen_example(3);
    change(profile.measurements[0].layers);
    CHECK_THROWS_WITH(validate(profile, "p.json"), ContainsSubstring(why));
  };
  using Layers = std::vector<LayerProfile>;
  refused([](Layers& layers) { layers[0].frozen.reset(); },
          "/measurements/0/layers/1/frozen: expected none behind");
  refused([](Layers& layers) { layers[1].parameters = Bytes{4}; }, "/layers/1/parameter_bytes: expected 0");
  refused([](Layers& layers) { layers[2].backward_input.median = Seconds{1}; },
          "expected no time of a backward");
  refused([](Layers& layers) { layers[2].keeps_output = true; }, "nothing kept for one");
  Profile tied = frozen_example(3);
  tied.ties = {{"shared", {2, 4}, Bytes{4}}};
  CHECK_THROWS_WITH(
      validate(tied, "p.json"),
      ContainsSubstring("p.json: /ties/0/layers: expected layers that are not frozen, found 2"));
}

}  // namespace
}  // namespace stagecraft
