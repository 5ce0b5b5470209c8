// Plans of models whose first layers are frozen.

#include "base/json.h"
#include "partitioner/search/planner.h"
#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "test/partitioner/every_cuts.h"
#include "test/partitioner/example.h"
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
    for (int i = 0; i < count; ++i) {
      LayerProfile& layer = measurement.layers[to_size(i)];
      layer.frozen = true;
      layer.buffers += std::exchange(layer.parameters, {});
      layer.backward_input = layer.backward_weight = layer.step = {};
      layer.kept_for_input = layer.kept_for_weight = {};
      layer.keeps_input = layer.keeps_output = false;
      layer.weight_half_keeps_input = layer.weight_half_keeps_output = {};
      layer.weight_half_keeps_gradient = false;
      layer.backward_transient = {};
      layer.backward_input_transient = layer.backward_weight_transient = layer.optimizer =
          layer.step_transient = {};
    }
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
  const Profile profile = frozen_example(6);
  for (const char* schedule : {"1f1b", "fill_drain", "zb_h1", "pipedream", "auto"}) {
    PlanRequest request = request_of(schedule, 3);
    const PlanCandidate found = make_plan(profile, machine(3), request).best;
    INFO(schedule);
    CHECK_NOTHROW(validate(found.plan, "made"));
    if (std::string(schedule) == "auto") continue;  // whose search may end before
    for (int a = 1; a < 9; ++a) {
      for (int b = a + 1; b < 10; ++b) {
        request.cuts = {a, b};
        const PlanCandidate other = make_plan(profile, machine(3), request).best;
        INFO(a << ", " << b);
        CHECK(found.plan.predicted->step.value <= other.plan.predicted->step.value * (1 + 1e-6));
      }
    }
  }
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
}

}  // namespace
}  // namespace stagecraft
