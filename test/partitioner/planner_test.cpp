#include "partitioner/search/planner.h"

#include "base/table.h"
#include "schedules/generators/registry.h"
#include "test/partitioner/every_cuts.h"
#include "test/partitioner/example.h"
#include "test/partitioner/random_layout.h"
#include "test/partitioner/random_profile.h"
#include "test/support/catch.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace stagecraft {
namespace {

using test::example;
using test::machine;

PlanRequest request_of(int micro_batches = 8) {
  PlanRequest request;
  request.micro_batch_size = 8;
  request.micro_batches = micro_batches;
  return request;
}

template <class Error>
std::string refused(const Profile& profile, const Cluster& cluster, const PlanRequest& request) {
  try {
    (void)make_plan(profile, cluster, request);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Bytes most_memory(const Plan& plan) {
  return *std::max_element(plan.predicted->memory.begin(), plan.predicted->memory.end());
}

}  // namespace

TEST_CASE("the best of all stage counts comes first, the others by their step", "[planner]") {
  const PlanResult result = make_plan(example(), machine(4), request_of());
  REQUIRE(result.others.size() == 3);
  CHECK(result.infeasible.empty());
  Seconds before = result.best.plan.predicted->step;
  for (const PlanCandidate& other : result.others) {
    CHECK(other.plan.predicted->step >= before);
    before = other.plan.predicted->step;
  }
  CHECK(result.best.plan.stages.size() == 4);
  CHECK_NOTHROW(validate(result.best.plan, "made"));
  CHECK(result.best.plan.layers() == 11);
  CHECK(result.best.plan.model == "gpt 4x128");
  CHECK(contains(result.best.bound_by, "compute of stage"));
}

TEST_CASE("a link that is too slow keeps the model on one device", "[planner]") {
  Cluster cluster = machine(2);
  cluster.levels[0].link.bytes_per_second = 1e6;
  const PlanResult result = make_plan(example(), cluster, request_of());
  CHECK(result.best.plan.stages.size() == 1);
  CHECK(result.others[0].bound_by == "link 0 -> 1");
}

TEST_CASE("the loss is never cut off from its model", "[planner]") {
  const PlanResult result = make_plan(example(), machine(10), [] {
    PlanRequest request = request_of();
    request.stages = 10;
    return request;
  }());
  CHECK(result.best.plan.stages.back().first_layer == 9);
  CHECK(result.best.plan.stages.back().last_layer == 11);
}

TEST_CASE("the user's own cuts are taken as they are", "[planner]") {
  PlanRequest request = request_of();
  request.cuts = {2, 3};
  const PlanResult result = make_plan(example(), machine(4), request);
  REQUIRE(result.best.plan.stages.size() == 3);
  CHECK(result.best.plan.stages[1].first_layer == 2);
  CHECK(result.best.plan.stages[2].first_layer == 3);
  CHECK(result.others.empty());
}

TEST_CASE("impossible requests say what is possible", "[planner]") {
  PlanRequest request = request_of();
  request.stages = 5;
  CHECK(contains(refused<InputError>(example(), machine(4), request), "the cluster machine has 4 devices"));
  request.stages = 11;
  CHECK(contains(refused<InputError>(example(), machine(16), request), "the model has 10 layers"));
  request.stages = 0;
  CHECK(contains(refused<InputError>(example(), machine(4), request), "expected at least 1"));
  request = request_of();
  for (const std::vector<int>& cuts : {std::vector<int>{0}, {3, 3}, {4, 2}, {10}, {-1}}) {
    request.cuts = cuts;
    CHECK(contains(refused<InputError>(example(), machine(4), request), "out of place"));
  }
  request.cuts = {2};
  request.stages = 3;
  CHECK(contains(refused<InputError>(example(), machine(4), request), "make 2 stages, but 3 are asked for"));
  request = request_of();
  request.schedule.name = "1f1";
  CHECK(contains(refused<InputError>(example(), machine(4), request), "1f1b"));
  request = request_of();
  request.schedule.vertical_sync = true;
  CHECK(contains(refused<InputError>(example(), machine(4), request), "vertical sync"));
  request = request_of();
  request.micro_batches = 2'147'483'647;
  CHECK(
      contains(refused<InputError>(example(), machine(4), request), "a step has 1 to 1000000 micro-batches"));
  for (const char* schedule : {"1f1b", "fill_drain", "interleaved_1f1b", "zb_h1", "auto", "pipedream"}) {
    request = request_of();
    request.schedule.name = schedule;
    request.micro_batches = 1'000'000;
    CHECK(contains(refused<InputError>(example(), machine(4), request),
                   "1000000 micro-batches per step are too many to plan: at most 100000 per pipeline"));
  }
  request = request_of();
  request.micro_batch_size = 5;
  CHECK(contains(refused<InputError>(example(), machine(4), request), "only of 4, 8"));
  for (const char* schedule : {"auto", "interleaved_1f1b"}) {
    request = request_of();
    request.schedule.name = schedule;
    request.virtual_stages = 0;
    CHECK(contains(refused<InputError>(example(), machine(4), request), "at least one stage, not 0"));
  }
}

TEST_CASE("memory decides where time would cut otherwise", "[planner]") {
  PlanRequest request = request_of();
  request.stages = 2;
  const Plan free = make_plan(example(), machine(2), request).best.plan;
  const Bytes most = most_memory(free);
  const PlanResult capped = make_plan(example(), machine(2, most - Bytes{1}), request);
  CHECK(capped.best.plan.stages[1].first_layer != free.stages[1].first_layer);
  CHECK(most_memory(capped.best.plan) < most);
  CHECK(capped.best.plan.predicted->bottleneck > free.predicted->bottleneck);
}

TEST_CASE("what does not fit is named with what it misses", "[planner]") {
  // One device has one micro-batch in flight: the cap that just holds two stages is too small for one.
  const Bytes two = most_memory(make_plan(example(), machine(2), request_of()).best.plan);
  const PlanResult result = make_plan(example(), machine(2, two), request_of());
  REQUIRE(result.best.plan.stages.size() == 2);
  REQUIRE(result.infeasible.size() == 1);
  CHECK(contains(result.infeasible[0], "1 stage: stage 0 (embedding .. loss) needs"));
  const std::string nothing = refused<RefusedError>(example(), machine(2, Bytes{10 << 20}), request_of());
  CHECK(contains(nothing, "no plan fits:"));
  CHECK(contains(nothing, "1 stage: stage 0 (embedding .. loss) needs"));
  CHECK(contains(nothing, "2 stages: even with the cuts that need least memory ("));
  CHECK(contains(nothing, "more than the 10.0 MiB a device has to give"));
  PlanRequest request = request_of();
  request.cuts = {1};
  CHECK(contains(refused<RefusedError>(example(), machine(2, Bytes{10 << 20}), request),
                 "2 stages: with the cuts asked for (1), stage 1"));
}

TEST_CASE("of synchronous plans of equal step the one that needs least memory is taken", "[planner]") {
  int ties = 0;
  REQUIRE(rc::check("against all cuts", [&] {
    const Schedule& schedule = *rc::gen::suchThat(rc::gen::elementOf(schedules()), [](const Schedule& s) {
      return s.synchronous && !s.orders_by_time;
    });
    const int per_rank = schedule.placement == PlacementKind::straight ? 1 : 2;
    const int ranks = *rc::gen::inRange(2, per_rank == 1 ? 4 : 3);
    const int layers = *rc::gen::inRange(ranks * per_rank + 1, ranks * per_rank + 4);
    Profile profile;
    profile.optimizer_bytes_per_parameter_byte = 1;
    Measurement m = test::random_measurement(layers);
    m.layers.back().output = Bytes{};
    m.layers.back().output_is_input = false;
    for (LayerProfile& layer : m.layers) {  // many steps are equal
      layer.forward.median = layer.backward_input.median = Seconds{1.0 * *rc::gen::inRange(0, 2)};
      layer.backward_weight.median = layer.step.median = Seconds{};
    }
    profile.measurements = {m};
    PlanRequest request;
    request.schedule.name = schedule.name;
    request.micro_batches = 2 * ranks;
    request.stages = ranks * per_rank;
    request.virtual_stages = per_rank;
    Cluster cluster = machine(ranks);
    cluster.levels[0].link = Link{Seconds{0}, 1e18};
    const Plan plan = make_plan(profile, cluster, request).best.plan;
    int equal = 0;
    test::every_cuts(layers, *request.stages, [&](const std::vector<int>& cuts) {
      PlanRequest each = request;
      each.cuts = cuts;
      const Plan other = make_plan(profile, cluster, each).best.plan;
      RC_ASSERT(other.predicted->step >= plan.predicted->step * (1 - 1e-9));
      if (other.predicted->step > plan.predicted->step * (1 + 1e-12)) return;
      ++equal;
      RC_ASSERT(most_memory(other) >= most_memory(plan));
    });
    ties += equal > 1 ? 1 : 0;
  }));
  CHECK(ties > 20);
}

TEST_CASE("with a cap the plan is the best of all that the proof accepts", "[planner]") {
  REQUIRE(rc::check("against all cuts", [] {
    Profile profile;
    profile.optimizer_bytes_per_parameter_byte = 1;
    const int layers = *rc::gen::inRange(2, 7);
    Measurement m = test::random_measurement(layers);
    m.layers.back().output = Bytes{};
    m.layers.back().output_is_input = false;
    test::read_fields(m);
    profile.measurements = {m};
    PlanRequest request;
    request.micro_batches = *rc::gen::inRange(2, 6);  // 2 will do for 2bw on 3 stages
    const Schedule schedule = *rc::gen::suchThat(rc::gen::elementOf(schedules()), [](const Schedule& s) {
      return s.placement == PlacementKind::straight && !s.orders_by_time;
    });
    request.schedule.name = schedule.name;
    if (schedule.synchronous) test::share_weights(profile);
    const int stages = *rc::gen::inRange(1, std::min(layers, 3) + 1);
    request.stages = stages;
    Cluster cluster = machine(stages, Bytes{*rc::gen::inRange(100, 2000)});
    cluster.levels[0].link = Link{Seconds{0}, 1e18};

    // Without a flush the planner minimizes the bottleneck, with one the step.
    const auto value = [&](const Plan& plan) {
      return schedule.synchronous ? plan.predicted->step : plan.predicted->bottleneck;
    };
    std::optional<Seconds> best;
    Cluster unlimited = cluster;
    unlimited.memory.reset();
    PlanRequest each = request;
    for (int a = 1; a < (stages > 1 ? layers : 2); ++a) {
      for (int b = a + 1; b < (stages > 2 ? layers : a + 2); ++b) {
        each.cuts.clear();
        if (stages > 1) each.cuts.push_back(a);
        if (stages > 2) each.cuts.push_back(b);
        const Plan plan = make_plan(profile, unlimited, each).best.plan;
        if (most_memory(plan) > *cluster.memory) continue;
        if (!best || value(plan) < *best) best = value(plan);
      }
    }
    RC_CLASSIFY(!best, "nothing fits");
    try {
      const Plan plan = make_plan(profile, cluster, request).best.plan;
      RC_ASSERT(best);
      RC_ASSERT(value(plan).value <= best->value * (1 + 1e-9));
      RC_ASSERT(most_memory(plan) <= *cluster.memory);
    } catch (const RefusedError&) {
      RC_ASSERT(!best);
    }
  }));
}

TEST_CASE("of cuts of equal bottleneck the shortest simulated step wins, then the least memory",
          "[planner]") {
  REQUIRE(rc::check("against all ties", [] {
    Profile profile;
    profile.optimizer_bytes_per_parameter_byte = 1;
    const int layers = *rc::gen::inRange(4, 9);
    Measurement& measurement = profile.measurements.emplace_back();
    for (int i = 0; i < layers; ++i) {
      LayerProfile& layer = measurement.layers.emplace_back(
          test::plain_layer(i, *rc::gen::element(3, 3, 3, 6, 12), *rc::gen::inRange(0, 3)));
      layer.parameters = Bytes{*rc::gen::inRange(0, 100)};
      layer.kept_for_input = Bytes{*rc::gen::inRange(0, 100)};
    }
    PlanRequest request;
    request.schedule.name = *rc::gen::element<std::string>("pipedream", "2bw");
    request.stages = *rc::gen::inRange(2, 5);
    request.micro_batches = *request.stages * *rc::gen::inRange(1, 3);
    // Links that are no bottleneck.
    const Cluster cluster = flat_cluster("", *request.stages, {Seconds{*rc::gen::inRange(0, 2) * 0.5}, 1e9});
    const Plan plan = make_plan(profile, cluster, request).best.plan;
    int ties = 0;
    test::every_cuts(layers, *request.stages, [&](const std::vector<int>& cuts) {
      PlanRequest asked = request;
      asked.cuts = cuts;
      const Plan other = make_plan(profile, cluster, asked).best.plan;
      if (other.predicted->bottleneck.value > plan.predicted->bottleneck.value * (1 + 1e-9)) return;
      ++ties;
      RC_ASSERT(plan.predicted->step.value <= other.predicted->step.value * (1 + 1e-9));
      if (other.predicted->step.value <= plan.predicted->step.value * (1 + 1e-12))
        RC_ASSERT(most_memory(plan) <= most_memory(other));
    });
    RC_CLASSIFY(ties > 1, "ties");
  }));
}

TEST_CASE("with replicas the plan is the best of all layouts and cuts", "[planner]") {
  REQUIRE(rc::check("against all", [] {
    Profile profile;
    profile.optimizer_bytes_per_parameter_byte = 1;
    const int layers = *rc::gen::inRange(2, 6);
    profile.measurements = {test::random_measurement(layers)};
    const int frozen = *rc::gen::arbitrary<bool>() ? 0 : *rc::gen::inRange(0, layers);
    for (int i = 0; i < frozen; ++i) test::freeze(profile.measurements.front().layers[to_size(i)]);
    test::share_weights(profile);
    PlanRequest request;
    request.micro_batches = *rc::gen::inRange(1, 9);
    const Schedule schedule = *rc::gen::suchThat(
        rc::gen::elementOf(schedules()), [](const Schedule& s) { return s.synchronous && !s.searched; });
    request.schedule.name = schedule.name;
    request.replicate = true;
    Cluster cluster = test::random_cluster();
    const int devices = *rc::gen::inRange(2, 5);
    cluster.levels.resize(1);
    cluster.levels.push_back({3, Link{Seconds{0.5}, 8}, *rc::gen::element(SharedBy::pair, SharedBy::child)});
    cluster.levels[0].count = 2;
    cluster.levels[1].count = (devices + 1) / 2;
    cluster.speed.clear();
    if (*rc::gen::arbitrary<bool>()) {
      for (int d = 0; d < cluster.devices(); ++d) cluster.speed.push_back(*rc::gen::element(0.5, 1.0, 2.0));
    }
    const int stages_per_rank = schedule.virtual_stages;
    std::vector<std::vector<int>> widths;
    for (int positions = 1; positions <= cluster.devices() && positions * stages_per_rank <= layers;
         ++positions) {
      widths.emplace_back(static_cast<std::size_t>(positions), 1);
    }
    for (const planning::Layout& layout :
         planning::replicated_layouts(schedule.placement, stages_per_rank,
                                      {.devices = cluster.devices(), .most_stages = layers})
             .list) {
      if (layout.block == 1) widths.push_back(layout.widths);
    }
    RC_PRE(!widths.empty());
    Seconds least{1e300};
    PlanRequest each = request;
    for (const std::vector<int>& chosen : widths) {
      each.widths = chosen;
      test::every_cuts(layers, static_cast<int>(chosen.size()) * stages_per_rank,
                       [&](const std::vector<int>& cuts) {
                         each.cuts = cuts;
                         each.stages = static_cast<int>(cuts.size()) + 1;
                         least = std::min(least, make_plan(profile, cluster, each).best.plan.predicted->step);
                       });
    }
    const PlanResult result = make_plan(profile, cluster, request);
    RC_LOG() << schedule.name << ", " << frozen << " of " << layers << " layers frozen, "
             << profile.ties.size() << " tied weights, " << request.micro_batches << " micro-batches, "
             << cluster.devices() << " devices";
    RC_ASSERT(result.proof);
    RC_ASSERT(result.proof->bound.value <= least.value * (1 + 1e-9));
    const bool best = result.best.plan.predicted->step.value <= least.value * (1 + 1e-9);
    RC_ASSERT(best || !result.proof->optimal);
    if (!schedule.orders_by_time) {  // else a search may end before
      RC_ASSERT(best);
      RC_ASSERT(result.proof->optimal);
      RC_ASSERT(result.proof->bound.value >= least.value * (1 - 1e-9));
    }
    validate(result.best.plan, "made");
    RC_CLASSIFY(result.best.plan.placement().world() > result.best.plan.placement().stages(), "replicated");
  }));
}

TEST_CASE("an order made by time finds replicas that fit, about as good as each layout by itself",
          "[planner]") {
  PlanRequest request = request_of(16);
  request.replicate = true;
  request.recompute = std::nullopt;
  const Bytes one_stage = most_memory(make_plan(example(), machine(1), request_of()).best.plan);
  const Cluster cluster = machine(8, Bytes{one_stage.value * 3 / 4});
  for (const char* schedule : {"zb_v", "v_half", "interleaved_zb"}) {
    INFO(schedule);
    request.schedule.name = schedule;
    request.widths.clear();
    const PlanResult result = make_plan(example(), cluster, request);
    CHECK(most_memory(result.best.plan) <= *cluster.memory);
    CHECK_NOTHROW(validate(result.best.plan, "made"));
    const int stages_per_rank = find_schedule(schedule).virtual_stages;
    bool fits = false;
    for (const int positions : {1, 2, 4}) {
      request.widths.assign(static_cast<std::size_t>(positions), 8 / positions);
      try {
        const Plan alone = make_plan(example(), cluster, request).best.plan;
        CHECK(alone.stages.size() == static_cast<std::size_t>(positions * stages_per_rank));
        // By itself it gets all of the search.
        INFO(positions << " positions: " << alone.predicted->step.value << " s alone, best "
                       << result.best.step().value);
        CHECK(result.best.step() <= alone.predicted->step * 1.05);
        fits = true;
      } catch (const RefusedError& error) {  // says why, though there is one layout only
        CHECK(contains(error.what(), "need"));
      }
    }
    CHECK(fits);
    CHECK(result.best.plan.placement().replicated());
  }
}

TEST_CASE("what cannot fit on any plan is refused before anything is searched", "[planner]") {
  PlanRequest request = request_of();
  request.replicate = true;
  std::size_t searched = 0;
  request.search.progress = [&](const SearchProgress&) { ++searched; };
  const StageCosts all = stage_costs(example().at(8), 0, 11, example().optimizer_bytes_per_parameter_byte);
  const Bytes standing = all.weights() + all.buffers + all.parameters + all.optimizer_state;
  const auto on = [&](int devices, Bytes each) {
    return refused<RefusedError>(example(), machine(devices, each), request);
  };
  for (const char* schedule : {"1f1b", "zb_v", "auto", "pipedream"}) {
    INFO(schedule);
    request.schedule.name = schedule;
    searched = 0;
    const std::string why = on(4, Bytes{standing.value / 4 - 1});
    CHECK(contains(why, "no plan fits:\n  weights "));
    CHECK(contains(why, fmt::format("make {}, more than the", format_bytes(standing))));
    CHECK(contains(why, "that 4 devices have to give"));
    CHECK(contains(why, "it takes 5 devices or more"));
    CHECK(searched == 0);
    // Not for want of the floor's bytes where there are as many.
    CHECK_FALSE(contains(on(4, Bytes{standing.value / 4 + 1}), "that 4 devices have to give"));
  }
  const std::string layer = on(256, Bytes{1 << 20});
  INFO(layer);
  CHECK(contains(layer, "no number of devices can fit, for a layer is not cut"));
}

TEST_CASE("replicas never make a plan impossible, and every refusal has its reasons", "[planner]") {
  // So many equal layers and devices have too many layouts to look at each: they are searched by classes.
  Profile profile = example();
  Measurement& measurement = profile.measurements[1];
  measurement.layers.assign(24, measurement.layers[2]);
  profile.measurements = {measurement};
  PlanRequest request = request_of(16);
  for (const char* schedule : {"1f1b", "zb_h1"}) {
    for (const std::int64_t work : {std::int64_t{0}, std::int64_t{20'000'000}}) {
      request.schedule.name = schedule;
      request.search.cut_work = work;
      request.replicate = false;
      const double most = static_cast<double>(make_plan(profile, machine(16), request).best.memory().value);
      for (const double share : {0.6, 0.4, 0.25, 0.1}) {
        const Cluster cluster = machine(16, Bytes{static_cast<std::int64_t>(most * share)});
        INFO(schedule << ", work " << work << ", " << share << " of " << most);
        const auto fits = [&](bool replicate) {
          request.replicate = replicate;
          try {
            (void)make_plan(profile, cluster, request);
            return true;
          } catch (const NoPlanFits& error) {
            CHECK_FALSE(error.last_reason().empty());
            return false;
          }
        };
        const bool plain = fits(false);
        CHECK((fits(true) || !plain));
      }
    }
  }
}

TEST_CASE("where a group is too short for the widest plan, the best of the others is taken", "[planner]") {
  REQUIRE(rc::check("against all widths", [] {
    Profile profile;
    const int layers = *rc::gen::inRange(2, 7);
    profile.measurements = {test::random_measurement(layers)};
    const Cluster cluster = test::random_cluster();
    PlanRequest request;
    request.schedule.name = "2bw";
    request.micro_batches = *rc::gen::inRange(2, 4);
    request.replicate = true;
    const Plan best = make_plan(profile, cluster, request).best.plan;
    bool short_somewhere = false;
    PlanRequest each = request;
    for (const planning::Layout& layout :
         planning::replicated_layouts(PlacementKind::straight, 1,
                                      {.devices = cluster.devices(), .most_stages = layers})
             .list) {
      if (layout.block > 1) continue;
      each.widths = layout.widths;
      each.stages = layout.positions();
      try {
        const Plan plan = make_plan(profile, cluster, each).best.plan;
        RC_ASSERT(best.predicted->step.value <= plan.predicted->step.value * (1 + 1e-9));
      } catch (const InputError&) {
        short_somewhere = true;
      } catch (const RefusedError&) {
        short_somewhere = true;
      }
    }
    RC_CLASSIFY(short_somewhere, "too short for some");
  }));
}

TEST_CASE("a search goes over placements and is never behind a schedule of the library", "[planner]") {
  PlanRequest request = request_of();
  request.search.work = 50'000;
  std::size_t told = 0;
  request.search.progress = [&](const SearchProgress& progress) { told = progress.placements; };
  const Bytes all = most_memory(make_plan(example(), machine(3), request).best.plan);
  for (const std::optional<Bytes>& memory : {std::optional<Bytes>{}, std::optional<Bytes>{all}}) {
    request.schedule.name = "auto";
    const PlanResult found = make_plan(example(), machine(3, memory), request);
    REQUIRE(found.best.search);
    CHECK(told == found.others.size() + found.infeasible.size() + found.not_found.size() + 1);
    CHECK_NOTHROW(validate(found.best.plan, "made"));
    CHECK(found.best.plan.program);
    CHECK(predict(found.best.plan).step == found.best.plan.predicted->step);
    for (const Schedule& schedule : schedules()) {
      if (!schedule.synchronous || schedule.searched) continue;
      request.schedule.name = schedule.name;
      try {
        const Plan other = make_plan(example(), machine(3, memory), request).best.plan;
        INFO(schedule.name);
        CHECK(found.best.plan.predicted->step <= other.predicted->step);
      } catch (const RefusedError&) {  // does not fit
      }
    }
  }
}

TEST_CASE("a search stays within what is asked for and within its time", "[planner]") {
  PlanRequest request = request_of();
  request.schedule.name = "auto";
  request.search.work = 10'000;
  request.virtual_stages = 2;
  request.stages = 8;
  const PlanResult found = make_plan(example(), machine(4), request);
  CHECK(found.best.plan.stages.size() == 8);
  CHECK(found.others.size() == 1);  // a loop and a V
  request.stages = 7;
  CHECK(contains(refused<InputError>(example(), machine(4), request),
                 "7 stages are no multiple of the 2 per rank"));
  request = request_of();
  request.schedule.name = "auto";
  request.search.time_limit = Seconds{0};
  CHECK(make_plan(example(), machine(2), request).best.plan.program);
  const std::string nothing = refused<RefusedError>(example(), machine(2, Bytes{10 << 20}), request);
  CHECK(contains(nothing, "nothing that fits was found within "));  // some order might
  // Between what a micro-batch needs and what any order needs the search says what the latter is.
  request.cuts = {2, 4, 7};
  request.stages = 4;
  request.virtual_stages = 2;
  const Bytes most = most_memory(make_plan(example(), machine(2), request).best.plan);
  bool told = false;
  for (Bytes cap = most; !told && cap.value > most.value / 8; cap = Bytes{cap.value * 15 / 16}) {
    const std::string why = refused<RefusedError>(example(), machine(2, cap), request);
    told = contains(why, "; no order of these stages needs less than");
  }
  CHECK(told);
}

TEST_CASE("a plan that recomputes takes longer, needs less, and is cut by what it takes", "[planner]") {
  PlanRequest request = request_of();
  request.stages = 4;
  request.schedule.name = "fill_drain";
  const Plan without = make_plan(example(), machine(4), request).best.plan;
  request.recompute = Recompute::all;
  const Plan with = make_plan(example(), machine(4), request).best.plan;
  for (const StagePlan& stage : with.stages) CHECK(stage.recompute == Recompute::all);
  CHECK(with.predicted->step > without.predicted->step);
  CHECK(most_memory(with) < most_memory(without));
  CHECK_NOTHROW(validate(with, "made"));
  // Cuts made for one kind are not better for the other than its own.
  Plan foreign = without;
  for (StagePlan& stage : foreign.stages) stage.recompute = Recompute::all;
  CHECK(predict(with).bottleneck <= predict(foreign).bottleneck);
  // What does not fit otherwise fits so.
  const Cluster tight = machine(4, Bytes{(most_memory(with).value + most_memory(without).value) / 2});
  CHECK_NOTHROW(make_plan(example(), tight, request));
  request.recompute = Recompute::none;
  CHECK(contains(refused<RefusedError>(example(), tight, request), "no plan fits"));
}

TEST_CASE("without a flush replicas are planned within memory", "[planner]") {
  PlanRequest request = request_of();
  request.schedule.name = "pipedream";
  request.replicate = true;
  Profile uneven = example();
  for (Measurement& measurement : uneven.measurements) {
    LayerProfile& heavy = measurement.layers[1];
    heavy.forward.median = heavy.forward.median * 8;
    heavy.backward_weight.median = heavy.backward_weight.median * 8;
  }
  const Plan free = make_plan(uneven, machine(4), request).best.plan;
  REQUIRE(free.placement().world() > static_cast<int>(free.stages.size()));
  const auto steady = [&](const Cluster& cluster, std::vector<int> widths) {
    PlanRequest one = request;
    one.widths = std::move(widths);
    try {
      const Plan plan = make_plan(uneven, cluster, one).best.plan;
      CHECK(most_memory(plan) <= *cluster.usable_memory());
      return plan.predicted->step.value;
    } catch (const RefusedError&) {
      return std::numeric_limits<double>::infinity();
    }
  };
  const std::vector<std::vector<int>> all{{2},    {3},    {4},       {1, 2},    {2, 1},   {1, 3},
                                          {3, 1}, {2, 2}, {1, 1, 2}, {1, 2, 1}, {2, 1, 1}};
  Bytes cap = most_memory(free);
  for (int n = 0; n < 12; ++n) {
    cap = Bytes{cap.value * 9 / 10};
    const Cluster tight = machine(4, cap);
    double least = std::numeric_limits<double>::infinity();
    for (const std::vector<int>& widths : all) least = std::min(least, steady(tight, widths));
    CHECK(steady(tight, {}) <= least);
  }
}

TEST_CASE("what is repeated may be left to the planner: no more than fits needs", "[planner]") {
  PlanRequest request = request_of();
  request.stages = 4;
  for (const char* name : {"1f1b", "fill_drain", "zb_h1", "pipedream", "auto"}) {
    request.schedule.name = name;
    request.virtual_stages = 1;
    request.search.work = 20'000;
    request.recompute = Recompute::none;
    const Plan without = make_plan(example(), machine(4), request).best.plan;
    request.recompute = Recompute::all;
    const Plan with = make_plan(example(), machine(4), request).best.plan;
    request.recompute = std::nullopt;
    CHECK(make_plan(example(), machine(4), request).best.plan.predicted->step == without.predicted->step);
    const Cluster tight = machine(4, Bytes{(most_memory(with).value + most_memory(without).value) / 2});
    const Plan chosen = make_plan(example(), tight, request).best.plan;
    INFO(name);
    CHECK(most_memory(chosen) <= *tight.usable_memory());
    CHECK(chosen.predicted->step <= with.predicted->step);
    CHECK(chosen.predicted->step >= without.predicted->step);
    if (!any_recompute(chosen.recompute())) {  // other cuts do
      request.recompute = Recompute::none;
      CHECK(make_plan(example(), tight, request).best.plan.predicted->step == chosen.predicted->step);
    }
    CHECK_NOTHROW(validate(chosen, "made"));
  }
}

TEST_CASE("a search with recomputation brings an order that the plan's stages complete", "[planner]") {
  PlanRequest request = request_of();
  request.stages = 4;
  request.virtual_stages = 1;
  request.schedule.name = "auto";
  request.recompute = Recompute::all_but_last;
  request.search.work = 20'000;
  const PlanResult result = make_plan(example(), machine(4), request);
  const Plan& plan = result.best.plan;
  REQUIRE(plan.program);
  for (const std::string& rank : plan.program->ranks) CHECK(!contains(rank, "R"));
  const ScheduleProgram program = plan_program(plan, {request.micro_batches});
  const auto recomputes = std::count_if(program.ranks[0].begin(), program.ranks[0].end(),
                                        [](const Action& action) { return action.op == Op::recompute; });
  CHECK(recomputes == request.micro_batches - 1);
  CHECK(predict(plan).step == plan.predicted->step);
}

TEST_CASE("a model of a trillion parameters is planned like any other", "[planner]") {
  Profile profile;
  profile.optimizer_bytes_per_parameter_byte = 2;
  Measurement& measurement = profile.measurements.emplace_back();
  measurement.micro_batch = 8;
  for (int i = 0; i < 8; ++i) {
    measurement.layers.push_back(test::plain_layer(i, 3e-3, 1'000'000));
    measurement.layers.back().parameters = Bytes{500'000'000'000};
  }
  validate(profile, "profile.json");
  CHECK(make_plan(profile, machine(4), request_of()).best.plan.stages.size() == 4);
  const std::string why = refused<RefusedError>(profile, machine(4, Bytes{80'000'000'000}), request_of());
  CHECK(contains(why, "than the 74.5 GiB a device has to give"));
}

}  // namespace stagecraft
