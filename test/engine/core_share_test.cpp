// What of a core a thread gets, and what people are told of it; clusters by where ranks are.

#include "base/core_share.h"

#include "engine/records/report/report.h"
#include "engine/run/resolve/measured_cluster.h"
#include "test/support/catch.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

using namespace stagecraft;

TEST_CASE("time in which a thread could not run is not its share of a core", "[core_share]") {
  CoreShare slept(Seconds{0.5}), worked(Seconds{0.5});
  CHECK_FALSE(slept.share());  // nothing to tell it by
  const CoreShare::Begin begin = CoreShare::begin();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  slept.add(begin);
  REQUIRE(slept.share());
  CHECK(*slept.share() < 0.1);
  const CoreShare::Begin work = CoreShare::begin();
  volatile double sum = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(600);
  while (std::chrono::steady_clock::now() < end) sum = sum + 1;
  worked.add(work);
  REQUIRE(worked.share());
  CHECK(*worked.share() > *slept.share());
  CHECK(*worked.share() < 1.01);
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
