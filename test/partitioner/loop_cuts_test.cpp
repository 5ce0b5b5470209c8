// Plans of loops and Vs are never behind random cuts and even ones. bench_loop_cuts asks the same of large models.

#include "partitioner/search/planner.h"
#include "schedules/generators/registry.h"
#include "test/partitioner/loop_case.h"
#include "test/support/catch.h"
#include "test/support/full.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {
namespace {

using namespace test;

constexpr int kSamples = 200;

TEST_CASE("a plan of a loop or a V is no slower than any of 200 cuts that fit, nor refused where one does",
          "[loop_cuts]") {
  int plans = 0, with_samples = 0, under_caps = 0;
  double worst = 0;
  for (const char* schedule :
       {"interleaved_1f1b", "looped_bfs", "interleaved_zb", "zb_v", "v_half", "v_min", "auto"}) {
    const bool searched = std::string(schedule) == "auto";
    const bool by_time = find_schedule(schedule).orders_by_time;
    for (std::uint64_t seed = 1; seed <= (by_time ? 1 : full() ? 2 : 1); ++seed) {
      LoopCase one = small_case(schedule, seed);
      one.request.search.cut_work = by_time ? 4'000'000'000 : 300'000'000;
      one.request.search.work = 20'000;
      const Samples samples(one, searched ? kSamples / 10 : kSamples, seed);
      std::vector<std::optional<double>> shares{std::nullopt, 0.0};
      if (!by_time) shares.push_back(0.3);
      for (const std::optional<double> share : shares) {
        const std::optional<Bytes> cap = share ? std::optional(samples.memory_at(*share)) : std::nullopt;
        const Sample* best = samples.best(cap);
        Cluster cluster = one.cluster;
        cluster.memory = cap;
        INFO(one.name << ", " << schedule << ", cap " << (cap ? cap->value : 0) << ", best sample "
                      << (best != nullptr ? best->kind : "none"));
        const PlanResult result = make_plan(one.profile, cluster, one.request);
        ++plans;
        if (best == nullptr) continue;
        ++with_samples;
        under_caps += cap ? 1 : 0;
        worst = std::max(worst, result.best.step() / best->step);
        CHECK(result.best.step().value <= best->step.value * (1 + 1e-9));
        if (cap) CHECK(result.best.memory() <= *cap);
      }
    }
  }
  fmt::print(
      "{} plans, {} beside cuts that fit, {} of them under caps; worst step {:.4f} of the best cuts'\n",
      plans, with_samples, under_caps, worst);
  CHECK(under_caps >= plans / 2);
}

TEST_CASE("cuts of loops are found where few fit", "[loop_cuts]") {
  int tight = 0;
  for (const char* schedule : {"interleaved_1f1b", "looped_bfs"}) {
    for (std::uint64_t seed = 1; seed <= (full() ? 4 : 2); ++seed) {
      LoopCase one = medium_case(schedule, seed);
      one.request.search.cut_work = 200'000'000;
      Samples samples(one, 40, seed);
      const Bytes before = samples.memory_at(0);
      samples.add_least(one);
      one.cluster.memory = samples.memory_at(0);
      INFO(schedule << ", " << one.name << ", cap " << one.cluster.memory->value << ", before "
                    << before.value);
      tight += one.cluster.memory->value * 100 < before.value * 99 ? 1 : 0;
      try {
        const PlanResult result = make_plan(one.profile, one.cluster, one.request);
        CHECK(result.best.memory() <= *one.cluster.memory);
        CHECK(result.best.step().value <= samples.best(one.cluster.memory)->step.value * (1 + 1e-9));
      } catch (const NoPlanFits& error) {
        FAIL_CHECK(error.what());
      }
    }
  }
  CHECK(tight >= (full() ? 4 : 2));
}

TEST_CASE("a finer chain is planned no worse than a coarser one of the same model", "[loop_cuts]") {
  for (const char* schedule : {"interleaved_1f1b", "zb_v"}) {
    INFO(schedule);
    LoopCase fine = small_case(schedule, 5);
    fine.request.search.cut_work = 300'000'000;
    const std::vector<LayerProfile> layers = fine.profile.measurements.front().layers;
    Profile coarse = fine.profile;
    std::vector<LayerProfile>& pairs = coarse.measurements.front().layers;
    pairs.clear();
    for (std::size_t i = 0; i < layers.size(); i += 2) {
      LayerProfile pair = layers[i];
      if (i + 1 < layers.size()) {
        const LayerProfile& next = layers[i + 1];
        pair.forward.median += next.forward.median;
        pair.backward_input.median += next.backward_input.median;
        pair.backward_weight.median += next.backward_weight.median;
        pair.step.median += next.step.median;
        pair.parameters += next.parameters;
        pair.kept_for_input +=
            next.kept_for_input + (next.keeps_input || layers[i].keeps_output ? layers[i].output : Bytes{});
        pair.output = next.output;
        pair.keeps_output = next.keeps_output;
      }
      pairs.push_back(pair);
    }
    if (static_cast<int>(pairs.size()) < *fine.request.stages) continue;
    const PlanResult of_pairs = make_plan(coarse, fine.cluster, fine.request);
    CHECK(make_plan(fine.profile, fine.cluster, fine.request).best.step().value <=
          of_pairs.best.step().value * (1 + 1e-9));
  }
}

TEST_CASE("what the search did not find is not said to be impossible", "[loop_cuts]") {
  LoopCase one = small_case("interleaved_1f1b", 2);
  const Samples samples(one, 20, 1);
  one.cluster.memory = Bytes{samples.memory_at(0).value * 9 / 10};
  one.request.search.cut_work = 1'000'000;
  std::string why;
  try {
    (void)make_plan(one.profile, one.cluster, one.request);
  } catch (const NoPlanFits& error) {
    why = error.what();
    CHECK(!error.proved());
  }
  CHECK_THAT(why, Catch::Matchers::ContainsSubstring("nothing that fits was found within "));
  CHECK_THAT(why, Catch::Matchers::ContainsSubstring("no cuts need less than "));
  // A layer that no device can hold is a proof.
  one.cluster.memory = Bytes{1000};
  try {
    (void)make_plan(one.profile, one.cluster, one.request);
    CHECK(false);
  } catch (const NoPlanFits& error) {
    CHECK(error.proved());
  }
}

}  // namespace
}  // namespace stagecraft
