// What of a core a thread gets, and what people are told of it; clusters by where ranks are.

#include "base/core_share.h"

#include "engine/records/report/report.h"
#include "engine/run/resolve/measured_cluster.h"
#include "test/support/catch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <sched.h>
#include <string>
#include <thread>
#include <vector>

using namespace stagecraft;

namespace {

void work_for(std::chrono::milliseconds time) {
  volatile double sum = 0;
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) sum = sum + 1;
}

/// On one of the cores that it may use; false where it may not choose.
bool to_one_core() {
  cpu_set_t all, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof all, &all) != 0) return false;
  int core = 0;
  while (core < CPU_SETSIZE && !CPU_ISSET(core, &all)) ++core;
  CPU_SET(core, &one);
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

}  // namespace

TEST_CASE("time in which a thread had no core is not its share, and sleep is nobody's", "[core_share]") {
  CoreShare slept(Seconds{0.3});
  CHECK_FALSE(slept.share());  // nothing to tell it by
  const CoreShare::Begin begin = CoreShare::begin();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  slept.add(begin);
  CHECK_FALSE(slept.share());

  // Two threads on one core, for as long: each gets half of it.
  std::optional<double> worked, other;
  std::atomic<bool> pinned = true;
  const auto half = [&pinned](std::optional<double>& share) {
    if (!to_one_core()) pinned = false;
    CoreShare of(Seconds{0.3});
    const CoreShare::Begin work = CoreShare::begin();
    of.add(work);
    work_for(std::chrono::milliseconds(900));
    of.add(work);
    share = of.share();
  };
  std::thread first(half, std::ref(worked)), second(half, std::ref(other));
  first.join();
  second.join();
  if (!pinned) {
    WARN("threads may not be moved to a core");
    return;
  }
  REQUIRE(worked);
  REQUIRE(other);
  CHECK(std::min(*worked, *other) < kWholeCore);
  CHECK(*worked + *other < 1.5);
  CHECK(std::min(*worked, *other) > 0);
}

TEST_CASE("ranks that got part of a core are named, with what to do", "[core_share]") {
  CHECK(shared_cores({}).empty());
  CHECK(shared_cores({0, 0}).empty());  // not known
  CHECK(shared_cores({1, 0.97, 0.9}).empty());
  const std::string one = shared_cores({1, 0.48});
  CHECK(one.starts_with("rank 1 got 48.0 % of a core while it computed"));
  const std::string some = shared_cores({0.5, 0.48, 0, 1});
  CHECK(some.starts_with("2 of 4 ranks got part of a core while they computed (least: rank 1, 48.0 %)"));
  CHECK(some.find("threads_per_rank") != std::string::npos);
}

TEST_CASE("a cluster file has equal machines, one after the other", "[core_share]") {
  CHECK(ranks_per_machine({{0, 1}}) == 1);
  CHECK(ranks_per_machine({{0, 2}, {1, 2}, {0, 2}, {1, 2}}) == 2);
  CHECK(ranks_per_machine({{0, 1}, {0, 1}, {0, 1}}) == 1);
  CHECK_THROWS_AS(ranks_per_machine({{0, 2}, {1, 2}, {0, 1}}), InputError);
  CHECK_THROWS_AS(ranks_per_machine({{0, 2}, {0, 2}, {1, 2}, {1, 2}}), InputError);  // dealt in turn
}
