#include "engine/core/recorder.h"

#include "test/support/catch.h"

#include <limits>

using namespace stagecraft;

namespace {

std::vector<std::int64_t> kept_steps(int most, const std::vector<std::int64_t>& made) {
  Recorder recorder(Rank{0}, most, at::kCPU);
  for (const std::int64_t step : made) recorder.record(Action{}, step, recorder.mark(), recorder.mark());
  std::vector<std::int64_t> steps;
  for (const Event& event : recorder.events()) steps.push_back(event.step);
  return steps;
}

}  // namespace

TEST_CASE("the last steps are kept, and all where more are asked for than were made", "[recorder]") {
  using Steps = std::vector<std::int64_t>;
  CHECK(kept_steps(2, {0, 1, 2, 3}) == Steps{2, 3});
  CHECK(kept_steps(100, {0, 1, 2, 3}) == Steps{0, 1, 2, 3});
  CHECK(kept_steps(std::numeric_limits<int>::max(), {0, 1, 2, 3}) == Steps{0, 1, 2, 3});
}

TEST_CASE("steps keep their numbers in runs of more than 2^31", "[recorder]") {
  using Steps = std::vector<std::int64_t>;
  constexpr std::int64_t late = 5'000'000'000;
  CHECK(kept_steps(2, {late, late + 1, late + 2}) == Steps{late + 1, late + 2});
  CHECK(kept_steps(std::numeric_limits<int>::max(), {late, late + 1}) == Steps{late, late + 1});
}

TEST_CASE("a sum is told where it began, among the actions that it ran beside", "[recorder]") {
  Recorder recorder(Rank{0}, 10, at::kCPU);
  const Seconds sum_begins = recorder.mark().time;
  Recorder::Mark begin = recorder.mark();
  recorder.record({.op = Op::backward}, 0, std::move(begin), recorder.mark());
  recorder.record_sum({.op = Op::reduce}, 0, sum_begins, recorder.mark().time, Bytes{64});
  REQUIRE(recorder.events().size() == 2);
  const Event& sum = recorder.events().front();
  CHECK(sum.action.op == Op::reduce);
  CHECK(sum.lane == Event::Lane::send);
  CHECK(sum.begin == sum_begins);
  CHECK(sum.bytes == Bytes{64});
}
