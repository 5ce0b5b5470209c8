#include "partitioner/advice/replan.h"

#include "test/partitioner/random_profile.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {
namespace {

/// Twelve layers of 3 ms (a third forward), small boundaries.
Profile even_profile() {
  Profile profile;
  Measurement measurement;
  for (int i = 0; i < 12; ++i) {
    LayerProfile layer = test::plain_layer(i, 3e-3, 1000);
    layer.step.median = Seconds{1e-4};
    measurement.layers.push_back(layer);
  }
  profile.measurements = {measurement};
  return profile;
}

Cluster fast_machine(int devices) { return flat_cluster("machine", devices, Link{Seconds{1e-6}, 1e10}); }

Plan planned(const Profile& profile, const Cluster& cluster, std::vector<int> cuts) {
  PlanRequest request;
  request.micro_batches = 8;
  request.cuts = std::move(cuts);
  return make_plan(profile, cluster, request).best.plan;
}

/// What the plan's own costs say, each stage so many times slower.
std::vector<MeasuredStage> measured(const Plan& plan, const std::vector<double>& slower) {
  std::vector<MeasuredStage> all;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StageCosts& costs = plan.costs->stages[s];
    const double factor = slower[s] / plan.costs->speed_of(plan.stages[s].ranks.front());
    all.push_back({costs.forward * factor, (costs.backward_input + costs.backward_weight) * factor,
                   costs.step * factor});
  }
  return all;
}

std::vector<int> layers_of(const Plan& plan) {
  std::vector<int> layers;
  for (const StagePlan& stage : plan.stages) layers.push_back(stage.last_layer - stage.first_layer);
  return layers;
}

const Replanned& blaming(const std::vector<Replanned>& answers, Attribution blame) {
  return *std::find_if(answers.begin(), answers.end(), [&](const Replanned& a) { return a.blame == blame; });
}

std::string replan_refusal(const Plan& plan, const std::vector<MeasuredStage>& times, const Profile& profile,
                           const Cluster& cluster) {
  try {
    (void)replan(plan, times, profile, cluster);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a run that took what was planned has nothing to gain", "[replan]") {
  const Profile profile = even_profile();
  const Plan plan = planned(profile, fast_machine(3), {4, 8});
  for (const Replanned& answer : replan(plan, measured(plan, {1, 1, 1}), profile, fast_machine(3))) {
    INFO(enum_name(answer.blame));
    for (const double factor : answer.factors) CHECK(factor == Approx(1.0));
    CHECK(answer.present.predicted->step.value == Approx(plan.predicted->step.value));
    CHECK(answer.gain() == Seconds{});
    CHECK(!answer.break_even(Seconds{60}));
  }
}

TEST_CASE("a slow device gets fewer layers", "[replan]") {
  const Profile profile = even_profile();
  const Plan plan = planned(profile, fast_machine(3), {4, 8});
  const auto answers = replan(plan, measured(plan, {1, 2, 1}), profile, fast_machine(3));
  const Replanned& devices = blaming(answers, Attribution::devices);
  CHECK(devices.factors[0] == Approx(1.0));
  CHECK(devices.factors[1] == Approx(2.0));
  // Speeds 1, 1/2, 1: five layers on each fast device, two on the slow one.
  CHECK(layers_of(devices.result.best.plan) == std::vector<int>{5, 2, 5});
  CHECK(devices.result.best.plan.costs->speed == std::vector<double>{1, 0.5, 1});
  CHECK(devices.gain() > Seconds{});
  // The run as it is, simulated with what was measured: the slow stage sets the pace.
  CHECK(devices.present.predicted->bottleneck.value == Approx(24e-3));
  CHECK(*devices.break_even(Seconds{60}) == Approx(60 / devices.gain().value));
}

TEST_CASE("slow layers stay slow wherever they are", "[replan]") {
  const Profile profile = even_profile();
  const Plan plan = planned(profile, fast_machine(2), {6});
  const auto answers = replan(plan, measured(plan, {1, 2}), profile, fast_machine(2));
  const Replanned& layers = blaming(answers, Attribution::layers);
  CHECK(layers.factors[1] == Approx(2.0));
  // Six of 3 ms and six of 6 ms: 27 ms each is eight and four, were it not for whole layers: 30 against 24.
  const std::vector<int> cut = layers_of(layers.result.best.plan);
  CHECK(cut[0] > 6);
  CHECK(layers.result.best.plan.costs->speed.empty());
  const StageCosts& last = layers.result.best.plan.costs->stages[1];
  CHECK((last.forward + last.backward_input + last.backward_weight).value == Approx(cut[1] * 6e-3));
  CHECK(last.step.value == Approx(cut[1] * 2e-4));
  CHECK(layers.gain() > Seconds{});
}

TEST_CASE("the cluster's own speeds are taken off before anything is blamed", "[replan]") {
  const Profile profile = even_profile();
  Cluster cluster = fast_machine(2);
  cluster.speed = {1, 0.5};
  const Plan plan = planned(profile, cluster, {8});
  for (const Replanned& answer : replan(plan, measured(plan, {1, 1}), profile, cluster)) {
    for (const double factor : answer.factors) CHECK(factor == Approx(1.0));
    CHECK(answer.gain() == Seconds{});
  }
}

TEST_CASE("several stages on a rank are kept, and blamed on the rank together", "[replan]") {
  const Profile profile = even_profile();
  PlanRequest request;
  request.micro_batches = 8;
  request.schedule.name = "interleaved_1f1b";
  request.virtual_stages = 2;
  request.stages = 4;
  const Plan plan = make_plan(profile, fast_machine(2), request).best.plan;
  const auto answers = replan(plan, measured(plan, {1, 3, 1, 3}), profile, fast_machine(2));
  const Replanned& devices = blaming(answers, Attribution::devices);
  REQUIRE(devices.factors.size() == 2);
  CHECK(devices.factors[1] == Approx(3.0));
  CHECK(devices.result.best.plan.schedule.name == "interleaved_1f1b");
}

TEST_CASE("the new plan repeats what the run repeats, so that like is compared with like", "[replan]") {
  const Profile profile = even_profile();
  PlanRequest request;
  request.micro_batches = 8;
  request.cuts = {4, 8};
  request.recompute = Recompute::all;
  Plan plan = make_plan(profile, fast_machine(3), request).best.plan;
  for (const Replanned& answer : replan(plan, measured(plan, {1, 1, 1}), profile, fast_machine(3))) {
    for (const StagePlan& stage : answer.result.best.plan.stages) CHECK(stage.recompute == Recompute::all);
    CHECK(answer.gain() == Seconds{});
  }
  // Where stages differ it is chosen anew: without a cap nothing need be repeated.
  plan.stages[1].recompute = Recompute::none;
  for (const Replanned& answer : replan(plan, measured(plan, {1, 1, 1}), profile, fast_machine(3))) {
    CHECK(!any_recompute(answer.result.best.plan.recompute()));
    CHECK(answer.gain() > Seconds{});
  }
}

TEST_CASE("what does not belong to the run is refused", "[replan]") {
  const Profile profile = even_profile();
  const Plan plan = planned(profile, fast_machine(3), {4, 8});
  const auto times = measured(plan, {1, 1, 1});
  CHECK(replan_refusal(plan, times, profile, fast_machine(2))
            .find("3 ranks, but the cluster machine has 2 devices") != std::string::npos);
  Profile shorter = profile;
  shorter.measurements[0].layers.pop_back();
  CHECK(replan_refusal(plan, times, shorter, fast_machine(3)).find("12 layers and the profile of 11") !=
        std::string::npos);
  Plan other = plan;
  other.model_fingerprint = "a";
  Profile its = profile;
  its.model_fingerprint = "b";
  CHECK(replan_refusal(other, times, its, fast_machine(3)).find("fingerprints differ") != std::string::npos);
  Profile of_another_size = profile;
  of_another_size.measurements[0].micro_batch = 7;
  CHECK(replan_refusal(plan, times, of_another_size, fast_machine(3)) != "");
}

}  // namespace stagecraft
