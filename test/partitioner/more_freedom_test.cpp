// Who may have more never gets a slower plan than who may not, and is not refused where that one is not: with replicas
// and without, with any number of stages and with one.

#include "partitioner/search/planner.h"
#include "schedules/generators/registry.h"
#include "test/partitioner/loop_case.h"
#include "test/support/catch.h"
#include "test/support/full.h"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <utility>

namespace stagecraft {
namespace {

/// Of a plan, and the plan's least and most memory; infinite where nothing was found.
struct Found {
  double step = std::numeric_limits<double>::infinity();
  Bytes memory;
};

Found found(const test::LoopCase& one) {
  try {
    const PlanResult result = make_plan(one.profile, one.cluster, one.request);
    return {result.best.step().value, result.best.memory()};
  } catch (const NoPlanFits&) {
    return {};
  }
}

}  // namespace

TEST_CASE("with replicas allowed no plan is slower than without, nor refused where one fits",
          "[more_freedom]") {
  int plans = 0, replicated = 0;
  std::uint64_t turn = 0;
  for (const Schedule& schedule : schedules()) {
    if (!schedule.synchronous) continue;
    ++turn;
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      if (!test::full() && seed != 1 + turn % 2) continue;
      test::LoopCase one = test::small_case(schedule.name, seed);
      // Where sums over replicas are dear, layouts without are best.
      for (NetworkLevel& level : one.cluster.levels) level.link.bytes_per_second = seed == 1 ? 2e8 : 1e10;
      one.request.stages.reset();
      one.request.virtual_stages.reset();
      one.request.search.cut_work = 60'000'000;
      one.request.search.work = 20'000;
      for (const bool capped : {false, true}) {
        one.request.replicate = false;
        const Found plain = found(one);
        one.request.replicate = true;
        const Found free = found(one);
        INFO(schedule.name << ", " << one.name << (capped ? ", under a cap" : ""));
        CHECK(free.step <= plain.step * (1 + 1e-9));
        ++plans;
        replicated += free.step < plain.step * (1 - 1e-9) ? 1 : 0;
        one.cluster.memory = plain.memory;  // fits, and little else does
      }
    }
  }
  fmt::print("{} plans, {} of them faster with replicas\n", plans, replicated);
  CHECK(replicated > 0);
}

TEST_CASE(
    "a plan with any number of stages is as good as with one of them, and none is refused where one fits",
    "[more_freedom]") {
  // One number of stages gets all the work, of which any number has but a part for each: so much it may be behind.
  constexpr double kBehind = 0.03;
  int plans = 0;
  std::uint64_t turn = 0;
  for (const Schedule& schedule : schedules()) {
    if (!schedule.synchronous) continue;
    ++turn;
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      if (!test::full() && seed != 1 + turn % 2) continue;
      test::LoopCase one = test::small_case(schedule.name, seed);
      one.request.search.cut_work = 400'000'000;
      one.request.search.work = 50'000;
      const int most = one.cluster.devices();
      const int per_rank = schedule.searched ? 1 : schedule.virtual_stages;
      one.request.virtual_stages.reset();
      if (schedule.searched) one.request.virtual_stages = per_rank;
      for (const bool capped : {false, true}) {
        Found best;
        for (int positions = most; positions > most - 3 && positions > 1; --positions) {
          one.request.stages = positions * per_rank;
          const Found fixed = found(one);
          if (fixed.step < best.step) best = fixed;
        }
        one.request.stages.reset();
        INFO(schedule.name << ", " << one.name << (capped ? ", under a cap" : ""));
        CHECK(found(one).step <= best.step * (1 + kBehind));
        ++plans;
        one.cluster.memory = best.memory;  // fits, and little else does
      }
    }
  }
  fmt::print("{} plans\n", plans);
}

TEST_CASE("with replicas no plan is slower where there are too many layouts to look at each",
          "[more_freedom]") {
  for (const char* schedule : {"zb_h1", "1f1b"}) {
    test::LoopCase one = test::medium_case(schedule, 2);
    one.cluster = flat_cluster("one machine", 16, {Seconds{1e-5}, 2e8});
    one.request.stages.reset();
    one.request.virtual_stages.reset();
    one.request.micro_batches = 32;
    one.request.search.cut_work = 100'000'000;
    INFO(schedule << ", " << one.name);
    const Found plain = found(one);
    one.request.replicate = true;
    CHECK(found(one).step <= plain.step * (1 + 1e-9));
  }
}

}  // namespace stagecraft
