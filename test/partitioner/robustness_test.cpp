#include "partitioner/advice/robust_choice.h"
#include "partitioner/plan/jittered_step.h"
#include "partitioner/search/planner.h"
#include "test/partitioner/example.h"
#include "test/support/catch.h"

#include <algorithm>

namespace stagecraft {
namespace {

PlanResult planned(const std::string& schedule = "1f1b") {
  PlanRequest request;
  request.micro_batch_size = 8;
  request.micro_batches = 8;
  request.schedule.name = schedule;
  return make_plan(test::example(), test::machine(3), request);
}

/// Every time's interquartile range is such a share of its median.
void spread_out(Plan& plan, double share) {
  for (StageCosts& stage : plan.costs->stages) {
    stage.spread = StageSpread{stage.forward * share, stage.backward_input * share,
                               stage.backward_weight * share, stage.step * share};
  }
}

}  // namespace

TEST_CASE("times that do not vary give the step itself", "[robustness]") {
  for (const char* schedule : {"1f1b", "zb_h1", "pipedream"}) {
    INFO(schedule);
    Plan plan = planned(schedule).best.plan;
    spread_out(plan, 0);
    const JitteredStep jittered = jittered_step(plan, Jitter{.samples = 20});
    CHECK(jittered.p50.value == Approx(jittered.p95.value));
    // Without a flush the segment's fill and drain are in its mean step.
    CHECK(jittered.p50 >= plan.predicted->step * (1 - 1e-9));
    CHECK(jittered.p50 <= plan.predicted->step * (std::string(schedule) == "pipedream" ? 1.3 : 1 + 1e-9));
  }
}

TEST_CASE("the more times vary, the longer the steps of 95 %", "[robustness]") {
  Plan plan = planned().best.plan;
  Seconds before = plan.predicted->step;
  for (const double share : {0.05, 0.2, 0.5}) {
    spread_out(plan, share);
    const JitteredStep jittered = jittered_step(plan, Jitter{.samples = 500});
    CHECK(jittered.p95 > jittered.p50);
    CHECK(jittered.p95 > before);
    before = jittered.p95;
  }
}

TEST_CASE("choosing by p95 takes the steadier plan, and keeps the others in order", "[robustness]") {
  PlanResult result = planned();
  REQUIRE(result.others.size() == 2);
  spread_out(result.best.plan, 3);  // so wild that fewer stages are better
  for (PlanCandidate& other : result.others) spread_out(other.plan, 0.01);
  const Plan fastest = result.best.plan;
  const Jitter jitter{.samples = 200};

  PlanResult by_step = result;
  add_jitter(by_step, jitter, 3, ChooseBy::step);
  CHECK(by_step.best.plan.stages.size() == fastest.stages.size());
  for (const PlanCandidate& other : by_step.others) CHECK(other.jittered);
  REQUIRE(by_step.best.jittered->p95 > by_step.others.front().jittered->p95);

  PlanResult by_p95 = result;
  add_jitter(by_p95, jitter, 3, ChooseBy::p95);
  CHECK(by_p95.best.plan.stages.size() == by_step.others.front().plan.stages.size());
  REQUIRE(by_p95.others.size() == 2);
  CHECK(by_p95.others.front().plan.stages.size() == fastest.stages.size());
  CHECK(by_p95.others.front().plan.predicted->step <= by_p95.others.back().plan.predicted->step);

  PlanResult only_two = result;
  add_jitter(only_two, jitter, 2, ChooseBy::step);
  CHECK(only_two.others[0].jittered);
  CHECK_FALSE(only_two.others[1].jittered);
}

TEST_CASE("without any spread there is nothing to jitter by", "[robustness]") {
  Plan plan = planned().best.plan;
  for (StageCosts& stage : plan.costs->stages) stage.spread.reset();
  CHECK_THROWS_AS(jittered_step(plan, Jitter{.samples = 10}), InputError);
  CHECK_NOTHROW(jittered_step(plan, Jitter{.samples = 10, .link_spread = 0.1}));
}

}  // namespace stagecraft
