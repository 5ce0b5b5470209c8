#include "partitioner/advice/explain.h"

#include "schedules/generators/registry.h"
#include "test/partitioner/example.h"
#include "test/partitioner/random_layout.h"
#include "test/partitioner/random_profile.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

namespace stagecraft {
namespace {

using test::example;
using test::machine;

PlanRequest small_search(int micro_batches = 8) {
  PlanRequest request;
  request.micro_batch_size = 8;
  request.micro_batches = micro_batches;
  request.search.work = 20'000;
  return request;
}

Explanation explained(const Profile& profile, const Cluster& cluster, const PlanRequest& request) {
  return explain(profile, cluster, make_plan(profile, cluster, request), request);
}

std::vector<int> cuts_of(const Plan& plan) {
  std::vector<int> cuts;
  for (std::size_t s = 1; s < plan.stages.size(); ++s) cuts.push_back(plan.stages[s].first_layer);
  return cuts;
}

/// The plan with other cuts, priced from scratch and without a cap.
Prediction predicted(Plan plan, const std::vector<int>& cuts, const Profile& profile) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    StagePlan& stage = plan.stages[s];
    stage.first_layer = s == 0 ? 0 : cuts[s - 1];
    if (s < cuts.size()) stage.last_layer = cuts[s];
    plan.costs->stages[s] = stage_costs(profile.at(plan.micro_batch_size), stage.first_layer,
                                        stage.last_layer, profile.optimizer_bytes_per_parameter_byte);
  }
  plan.capacity.reset();
  return predict(plan);
}

Seconds sum_of(const std::vector<ChainPart>& chain) {
  return std::accumulate(chain.begin(), chain.end(), Seconds{},
                         [](Seconds sum, const ChainPart& part) { return sum + part.seconds; });
}

const WhatIf* find(const Explanation& explained, WhatIf::Kind kind, std::optional<int> level = {}) {
  for (const WhatIf& answer : explained.what_if) {
    if (answer.kind == kind && (!level || answer.level == level)) return &answer;
  }
  return nullptr;
}

bool near(Seconds a, Seconds b) { return std::abs(a.value - b.value) <= 1e-9 * std::max(1.0, b.value); }

}  // namespace

TEST_CASE("a moved cut takes what its program takes when it is priced alone", "[explain]") {
  REQUIRE(rc::check([] {
    const Schedule& schedule = **rc::gen::elementOf([] {
      std::vector<const Schedule*> all;
      for (const Schedule& one : schedules()) {
        if (!one.searched) all.push_back(&one);
      }
      return all;
    }());
    Profile profile;
    const int layers = *rc::gen::inRange(schedule.virtual_stages * 2, 7);
    profile.measurements = {test::random_measurement(layers)};
    const Cluster roomy = test::random_cluster();
    PlanRequest request;
    request.micro_batches = *rc::gen::inRange(2, 5);
    request.schedule.name = schedule.name;
    request.replicate = *rc::gen::arbitrary<bool>();
    request.recompute = *rc::gen::element(Recompute::none, Recompute::all);
    request.search.cut_work = 1'000'000;
    PlanResult result = make_plan(profile, roomy, request);
    Plan& plan = result.best.plan;
    if (*rc::gen::arbitrary<bool>()) {  // a cap that the plan just meets
      plan.capacity = *std::max_element(plan.predicted->memory.begin(), plan.predicted->memory.end());
    }
    const Explanation told = explain(profile, roomy, result, request);
    RC_ASSERT(near(told.step, plan.predicted->step));
    if (schedule.synchronous) {
      RC_ASSERT(near(sum_of(told.chain), told.step));
      RC_ASSERT(near(told.rank->busy + told.rank->lost.total(), told.step));
    }
    RC_ASSERT(told.cuts.size() + static_cast<std::size_t>(told.cuts_left_out) == plan.stages.size() - 1);
    RC_ASSERT(!told.cuts.empty() || plan.stages.size() == 1);
    for (const CutExplanation& cut : told.cuts) {
      const std::size_t c = cut.stage.index() - 1;
      for (const int way : {-1, 1}) {
        const std::optional<MovedCut>& moved = way < 0 ? cut.earlier : cut.later;
        std::vector<int> cuts = cuts_of(plan);
        RC_ASSERT(cut.layer == cuts[c]);
        cuts[c] += way;
        const int from = c == 0 ? 0 : cuts[c - 1];
        const int to = c + 1 == cuts.size() ? layers : cuts[c + 1];
        RC_ASSERT(moved.has_value() == (cuts[c] > from && cuts[c] < to));
        if (!moved) continue;
        const Prediction alone = predicted(plan, cuts, profile);
        RC_ASSERT(moved->layer == cuts[c]);
        RC_ASSERT(near(moved->step, alone.step));
        const Bytes most = *std::max_element(alone.memory.begin(), alone.memory.end());
        RC_ASSERT(moved->misses.has_value() == (plan.capacity && most > *plan.capacity));
        if (moved->misses) RC_ASSERT(moved->misses->needs == most);
      }
    }
    for (const Sensitivity& tenth : told.tenths) {
      Plan faster = plan;
      faster.capacity.reset();
      if (tenth.stage) {
        StageCosts& costs = faster.costs->stages[tenth.stage->index()];
        for (Seconds* time : {&costs.forward, &costs.backward_input, &costs.backward_weight}) {
          *time = *time / 1.1;
        }
      } else {
        Link& link = faster.costs->network.levels[static_cast<std::size_t>(*tenth.level)].link;
        link = {link.latency / 1.1, link.bytes_per_second * 1.1};
      }
      RC_ASSERT(
          near(told.step * (1 + tenth.change), told.step > Seconds{} ? predict(faster).step : told.step));
    }
  }));
}

TEST_CASE("the loss is not left alone by a moved cut", "[explain]") {
  PlanRequest request = small_search();
  request.cuts = {9};
  const Explanation told = explained(example(), machine(2), request);
  REQUIRE(told.cuts.size() == 1);
  CHECK(told.cuts[0].earlier);
  CHECK_FALSE(told.cuts[0].later);
}

TEST_CASE("what makes a moved cut slower is named", "[explain]") {
  Profile profile;
  Measurement& measurement = profile.measurements.emplace_back();
  for (int i = 0; i < 4; ++i) measurement.layers.push_back(test::plain_layer(i, 8, i == 2 ? 400 : 1));
  PlanRequest request;
  request.micro_batches = 4;
  request.cuts = {2};
  Cluster cluster = flat_cluster("", 2, Link{Seconds{}, 100});
  const Explanation told = explained(profile, cluster, request);
  const CutExplanation& cut = told.cuts.front();
  // Three layers of four behind the cut: the second stage has more to do.
  REQUIRE(cut.earlier->grown);
  CHECK(cut.earlier->grown->kind == ChainPart::Kind::compute);
  CHECK(cut.earlier->grown->stage == StageId{1});
  CHECK(cut.earlier->busiest);
  CHECK(cut.later->crossing == Bytes{400});
  // Layers that take nothing, but for what crosses.
  for (LayerProfile& layer : measurement.layers) layer = test::plain_layer(0, 0, 1);
  for (int i = 0; i < 4; ++i)
    measurement.layers[static_cast<std::size_t>(i)].name = std::string(1, static_cast<char>('a' + i));
  measurement.layers[2].output = Bytes{400};
  const CutExplanation bare = explained(profile, cluster, request).cuts.front();
  REQUIRE(bare.later->grown);
  CHECK(bare.later->grown->kind == ChainPart::Kind::link);
  CHECK(bare.later->grown->stage == StageId{1});
  CHECK(bare.later->change > 50);
}

TEST_CASE("what-ifs are plans for the cluster as it would be", "[explain]") {
  Cluster cluster = machine(2);
  cluster.levels.push_back({2, Link{Seconds{1e-4}, 1e9}});
  const PlanRequest request = small_search();
  const Explanation told = explained(example(), cluster, request);
  const auto step_on = [&](const Cluster& other, const PlanRequest& wanted) {
    return make_plan(example(), other, wanted).best.plan.predicted->step;
  };
  const Seconds now = step_on(cluster, request);
  CHECK(near(told.step, now));
  CHECK(find(told, WhatIf::Kind::more_memory) == nullptr);  // nothing lacks any

  const auto same = [&](const WhatIf* answer, const Cluster& other, const PlanRequest& wanted) {
    REQUIRE(answer != nullptr);
    INFO(enum_name(answer->kind));
    REQUIRE(answer->step);
    CHECK(near(*answer->step, step_on(other, wanted)));
    if (answer->kind != WhatIf::Kind::fewer_micro_batches) {
      CHECK(answer->change == Approx(*answer->step / now - 1));
    }
    std::vector<int> counts;
    for (const NetworkLevel& level : other.levels) counts.push_back(level.count);
    CHECK(answer->counts == counts);
  };
  Cluster other = cluster;
  other.levels[1].count = 3;
  same(find(told, WhatIf::Kind::more_devices, 1), other, request);
  other = cluster;
  other.levels[0].count = 3;
  same(find(told, WhatIf::Kind::more_devices, 0), other, request);
  other = cluster;
  other.levels[1].count = 1;
  same(find(told, WhatIf::Kind::fewer_devices), other, request);
  for (const std::size_t level : {0, 1}) {
    other = cluster;
    other.levels[level].link.latency = other.levels[level].link.latency / 2;
    other.levels[level].link.bytes_per_second *= 2;
    same(find(told, WhatIf::Kind::faster_links, static_cast<int>(level)), other, request);
  }
  PlanRequest halves = request;
  halves.micro_batch_size = 4;
  halves.micro_batches = 16;
  same(find(told, WhatIf::Kind::more_micro_batches), cluster, halves);
  CHECK(find(told, WhatIf::Kind::fewer_micro_batches) == nullptr);  // none of 16 was measured
  const Explanation of_halves = explained(example(), cluster, halves);
  same(find(of_halves, WhatIf::Kind::fewer_micro_batches), cluster, request);
}

TEST_CASE("no what-if that leaves the plan possible is slower than it", "[explain]") {
  REQUIRE(rc::check([] {
    Profile profile;
    profile.measurements = {test::random_measurement(*rc::gen::inRange(2, 6))};
    Cluster cluster = test::random_cluster();
    for (NetworkLevel& level : cluster.levels) level.shared_by = SharedBy::pair;
    PlanRequest request;
    request.micro_batches = *rc::gen::inRange(1, 5);
    request.replicate = *rc::gen::arbitrary<bool>();
    request.search.cut_work = 1'000'000;
    const Explanation told = explained(profile, cluster, request);
    for (const WhatIf& answer : told.what_if) {
      if (!answer.as_it_is) continue;
      RC_ASSERT(answer.step);
      RC_ASSERT(*answer.step <= *answer.as_it_is);
      RC_ASSERT(answer.step->value <= told.step.value * (1 + 1e-12));
    }
  }));
}

TEST_CASE("memory is asked for where it binds", "[explain]") {
  const PlanRequest request = [] {
    PlanRequest wanted = small_search();
    wanted.stages = 2;
    return wanted;
  }();
  const Plan free = make_plan(example(), machine(2), request).best.plan;
  const Bytes most = *std::max_element(free.predicted->memory.begin(), free.predicted->memory.end());
  const Explanation told = explained(example(), machine(2, most - Bytes{1}), request);
  const WhatIf* more = find(told, WhatIf::Kind::more_memory);
  REQUIRE(more != nullptr);
  CHECK(near(*more->step, free.predicted->step));
  CHECK(more->change < 0);
  CHECK_FALSE(more->plan.empty());
  CHECK(find(told, WhatIf::Kind::no_recompute) == nullptr);
  const WhatIf* chosen = find(told, WhatIf::Kind::chosen_recompute);
  REQUIRE(chosen != nullptr);
  PlanRequest choosing = request;
  choosing.recompute = std::nullopt;
  const Plan best = make_plan(example(), machine(2, most - Bytes{1}), choosing).best.plan;
  CHECK(near(*chosen->step, std::min(told.step, best.predicted->step)));

  PlanRequest repeated = request;
  repeated.recompute = Recompute::all;
  const Explanation with = explained(example(), machine(2, most), repeated);
  const WhatIf* kept = find(with, WhatIf::Kind::no_recompute);
  REQUIRE(kept != nullptr);
  CHECK(near(*kept->step, free.predicted->step));
}

TEST_CASE("speeds stay with their devices in a cluster of another shape", "[explain]") {
  Cluster cluster = machine(2);
  cluster.levels.push_back({2, Link{Seconds{1e-4}, 1e9}});
  cluster.speed = {1, 2, 0.5, 0.25};
  const PlanRequest request = small_search();
  const Explanation told = explained(example(), cluster, request);
  const auto step_on = [&](std::vector<int> counts, std::vector<double> speed) {
    Cluster other = cluster;
    for (std::size_t l = 0; l < counts.size(); ++l) other.levels[l].count = counts[l];
    other.speed = std::move(speed);
    return make_plan(example(), other, request).best.plan.predicted->step;
  };
  CHECK(near(*find(told, WhatIf::Kind::more_devices, 0)->step,
             std::min(told.step, step_on({3, 2}, {1, 2, 1, 0.5, 0.25, 1}))));
  CHECK(near(*find(told, WhatIf::Kind::more_devices, 1)->step,
             std::min(told.step, step_on({2, 3}, {1, 2, 0.5, 0.25, 1, 1}))));
  // The slower machine goes.
  CHECK(near(*find(told, WhatIf::Kind::fewer_devices)->step, step_on({2, 1}, {1, 2})));
}

TEST_CASE("a request that a smaller cluster cannot serve says why", "[explain]") {
  PlanRequest request = small_search();
  request.stages = 2;
  const Explanation told = explained(example(), machine(2), request);
  const WhatIf* fewer = find(told, WhatIf::Kind::fewer_devices);
  REQUIRE(fewer != nullptr);
  CHECK_FALSE(fewer->step);
  CHECK(fewer->refused.find("2 stages") != std::string::npos);
}

TEST_CASE("layers that no other is like stand alone where most are equal blocks", "[explain]") {
  Profile profile;
  Measurement& measurement = profile.measurements.emplace_back();
  measurement.micro_batch = 8;
  for (int i = 0; i < 8; ++i) measurement.layers.push_back(test::plain_layer(i, 1e-3, 100));
  LayerProfile& head = measurement.layers.emplace_back(test::plain_layer(8, 2e-3, 500));
  head.parameters = Bytes{4000};
  measurement.layers.push_back(test::plain_layer(9, 1e-6, 4));  // weighs nothing
  const std::vector<LoneLayer> lone = explained(profile, machine(2), small_search()).lone_layers;
  REQUIRE(lone.size() == 1);
  CHECK(lone[0].layer == 8);
  CHECK(near(lone[0].compute, Seconds{2e-3}));
  CHECK(std::abs(lone[0].share - 2e-3 / 10.001e-3) < 1e-9);
  CHECK(lone[0].parameters == Bytes{4000});

  for (int i = 0; i < 5; ++i) measurement.layers[static_cast<std::size_t>(i)].output = Bytes{200 + i};
  CHECK(explained(profile, machine(2), small_search()).lone_layers.empty());
}

}  // namespace stagecraft
