// When ranks write live records: soon, then by the clock, and all behind the same step.

#include "engine/run/show/live_times.h"

#include "test/support/catch.h"

#include <chrono>
#include <vector>

using stagecraft::LiveTimes;

namespace {

/// Steps behind which records were due, of ranks that step together: each step takes so long, and a rank's clock begins
/// `late` after the others'.
std::vector<std::int64_t> due_steps(std::int64_t start, std::chrono::milliseconds step, int steps,
                                    std::chrono::milliseconds late = {}) {
  LiveTimes::Clock::time_point now{};
  LiveTimes first(start, now), second(start, now + late);
  std::vector<std::int64_t> due;
  for (std::int64_t made = start; made < start + steps; ++made) {
    const bool asked = first.wants(now) || second.wants(now);
    now += step;
    const bool here = first.due(made, made + 1, asked, now), there = second.due(made, made + 1, asked, now);
    CHECK(here == there);
    if (here) due.push_back(made + 1);
  }
  return due;
}

}  // namespace

TEST_CASE("live records are written behind the third step and then every ten seconds, whatever a step takes",
          "[live_times]") {
  using namespace std::chrono_literals;
  CHECK(due_steps(0, 1000ms, 30) == std::vector<std::int64_t>{3, 13, 23});
  CHECK(due_steps(100, 4000ms, 10) == std::vector<std::int64_t>{103, 106, 109});
  CHECK(due_steps(0, 60000ms, 6) == std::vector<std::int64_t>{2, 3, 4, 5, 6});
  const std::vector<std::int64_t> fast = due_steps(0, 1ms, 25000, 7ms);
  CHECK(fast == std::vector<std::int64_t>{3, 10003, 20003});
}
