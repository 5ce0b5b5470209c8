#include "partitioner/plan/plan.h"
#include "test/support/catch.h"

namespace stagecraft {
namespace {

/// `stages` stages of 1 s forward and 2 s backward each; links that cost nothing worth mentioning.
Plan even_plan(const std::string& schedule, int stages, int micro_batches) {
  Plan plan;
  plan.schedule.name = schedule;
  plan.micro_batches = micro_batches;
  CostTable& costs = plan.costs.emplace();
  costs.network.levels = {{stages, Link{Seconds{0}, 1e18}}};
  for (int s = 0; s < stages; ++s) {
    plan.stages.push_back({s, s + 1, {Rank{s}}, Recompute::none});
    StageCosts stage;
    stage.forward = Seconds{1};
    stage.backward_input = Seconds{1};
    stage.backward_weight = Seconds{1};
    stage.parameters = Bytes{1000};
    stage.output = Bytes{s + 1 == stages ? 0 : 10};
    stage.input = Bytes{10};
    costs.stages.push_back(stage);
  }
  return plan;
}

}  // namespace

TEST_CASE("a synchronous step is filled and drained: (m + p - 1)(F + B)", "[predict]") {
  for (const char* schedule : {"fill_drain", "1f1b"}) {
    const Prediction prediction = predict(even_plan(schedule, 3, 6));
    CHECK(prediction.step.value == Approx((6 + 2) * 3));
    CHECK(prediction.step_ideal.value == Approx((6 + 2) * 3));
    CHECK(prediction.bubble == Approx(2.0 / 8));
    CHECK(prediction.bottleneck.value == Approx(3));
    CHECK(prediction.memory.size() == 3);
  }
}

TEST_CASE("an asynchronous step has no bubble once the pipeline is full", "[predict]") {
  for (const int micro_batches : {1, 2, 8}) {
    const Prediction prediction = predict(even_plan("pipedream", 4, micro_batches));
    CHECK(prediction.step.value == Approx(micro_batches * 3));
    CHECK(prediction.bubble == Approx(0).margin(1e-9));
  }
}

TEST_CASE("an asynchronous bubble is what uneven stages leave", "[predict]") {
  Plan plan = even_plan("pipedream", 2, 4);
  for (Seconds* part : {&plan.costs->stages[1].forward, &plan.costs->stages[1].backward_input,
                        &plan.costs->stages[1].backward_weight}) {
    *part = *part / 2;
  }
  const Prediction prediction = predict(plan);
  CHECK(prediction.step.value == Approx(4 * 3));
  CHECK(prediction.bubble == Approx(0.25));  // stage 1 idles half the time
}

TEST_CASE("a slow device and a slow link show", "[predict]") {
  Plan plan = even_plan("1f1b", 2, 4);
  const Seconds even = predict(plan).step;
  plan.costs->speed = {1, 0.5};
  CHECK(predict(plan).bottleneck.value == Approx(6));
  CHECK(predict(plan).step > even);
  plan.costs->speed.clear();
  plan.costs->network.levels[0].link.bytes_per_second = 20;
  CHECK(predict(plan).step > even);
  CHECK(predict(plan).step_ideal.value == Approx(even.value));
}

TEST_CASE("a plan above its capacity is refused", "[predict]") {
  Plan plan = even_plan("1f1b", 2, 4);
  const Prediction prediction = predict(plan);
  plan.capacity = prediction.memory[0];
  CHECK_NOTHROW((void)predict(plan));
  plan.capacity = prediction.memory[0] - Bytes{1};
  CHECK_THROWS_AS((void)predict(plan), RefusedError);
}

}  // namespace stagecraft
