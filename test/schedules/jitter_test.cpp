// Times that vary, drawn and simulated many times.

#include "base/statistics.h"
#include "schedules/simulator/simulator.h"
#include "test/schedules/simulator_cases.h"
#include "test/support/catch.h"
#include "test/support/count_allocations.h"

#include <algorithm>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// A program of one forward.
LoweredProgram one_forward() {
  Builder b(1);
  b.compute(0, Op::forward, 0);
  return std::move(b.program_);
}

std::vector<double> numbers(const std::vector<Seconds>& seconds) {
  std::vector<double> values;
  for (const Seconds s : seconds) values.push_back(s.value);
  return values;
}

Jitter jitter(int samples, std::uint64_t seed, double stage_spread, double link_spread = 0) {
  return {samples, seed, stage_spread, link_spread};
}

}  // namespace

TEST_CASE("an action's times have the median and the interquartile range they were given", "[jitter]") {
  const LoweredProgram program = one_forward();
  Simulator simulator(program);
  for (const double range : {0.02, 0.3, 1.5}) {
    CostTable costs = even_costs(1, 4, 0, 0);
    costs.stages[0].spread = StageSpread{Seconds{4 * range}, {}, {}, {}};
    const std::vector<double> measured = numbers(simulator.sample(costs, jitter(40'000, 1, 0)));
    costs.stages[0].spread.reset();
    const std::vector<double> given = numbers(simulator.sample(costs, jitter(40'000, 1, range)));
    CHECK(measured == given);
    // The standard error of a quartile of 40,000 is near 0.007 sigma.
    CHECK(quantile(given, 0.5) == Approx(4).epsilon(0.03 * range));
    CHECK(quantile(given, 0.75) - quantile(given, 0.25) == Approx(4 * range).epsilon(0.04));
    CHECK(given.front() > 0);
  }
}

TEST_CASE("both halves of a backward together vary as two that vary independently", "[jitter]") {
  Builder b(1);
  b.compute(0, Op::backward, 0);
  CostTable costs = even_costs(1, 1, 4, 0);
  costs.stages[0].spread = StageSpread{{}, Seconds{0.3}, Seconds{0.4}, {}};
  const std::vector<double> times = numbers(Simulator(b.program_).sample(costs, jitter(40'000, 3, 0)));
  CHECK(quantile(times, 0.75) - quantile(times, 0.25) == Approx(0.5).epsilon(0.04));
}

TEST_CASE("transfers vary when they are asked to", "[jitter]") {
  const LoweredProgram program = program_of("fill_drain", 2, {1});
  CostTable costs = slow_links(2);
  Simulator simulator(program);
  const double still = simulator.run(costs).makespan.value;
  const auto none = simulator.sample(costs, jitter(5, 0, 0));
  CHECK(none == std::vector<Seconds>(5, Seconds{still}));
  const auto some = simulator.sample(costs, jitter(500, 0, 0, 0.2));
  CHECK(some.front() < some.back());
  CHECK(quantile(numbers(some), 0.5) == Approx(still).epsilon(0.05));
}

TEST_CASE("a seed names its samples", "[jitter]") {
  const LoweredProgram program = program_of("1f1b", 4, {8});
  const CostTable costs = even_costs(4, 1, 2, 0.5);
  Simulator simulator(program);
  const auto first = simulator.sample(costs, jitter(50, 7, 0.1));
  simulator.run(costs);
  CHECK(simulator.sample(costs, jitter(50, 7, 0.1)) == first);
  CHECK(Simulator(program).sample(costs, jitter(50, 7, 0.1)) == first);
  CHECK(simulator.sample(costs, jitter(50, 8, 0.1)) != first);
  CHECK(std::is_sorted(first.begin(), first.end()));
  CHECK(std::adjacent_find(first.begin(), first.end()) == first.end());  // no sample is drawn twice
  const auto more = simulator.sample(costs, jitter(60, 7, 0.1));
  CHECK(std::includes(more.begin(), more.end(), first.begin(), first.end()));
}

TEST_CASE("an action varies the same way over whatever links", "[jitter]") {
  // Over links of no time the same samples can only be shorter: sorted, each one of them.
  const LoweredProgram program = program_of("1f1b", 4, {8});
  CostTable costs = slow_links(4);
  Simulator simulator(program);
  const auto slow = simulator.sample(costs, jitter(40, 5, 0.3));
  costs.network.levels[0].shared_by = SharedBy::child;
  const auto shared = simulator.sample(costs, jitter(40, 5, 0.3));
  costs.network = one_level(4, 0, kFree);
  const auto free = simulator.sample(costs, jitter(40, 5, 0.3));
  for (std::size_t i = 0; i < slow.size(); ++i) {
    CHECK(free[i] < slow[i]);
    CHECK(slow[i] <= shared[i]);
  }
}

TEST_CASE("jitter only ever costs, on average", "[jitter]") {
  // A makespan is a maximum of sums: its mean is above the maximum of their means (Jensen's inequality), and
  // a log-normal mean is above its median already.
  const LoweredProgram program = program_of("1f1b", 8, {16});
  const CostTable costs = even_costs(8, 1, 2, 0.5);
  Simulator simulator(program);
  const double still = simulator.run(costs).makespan.value;
  const auto samples = simulator.sample(costs, jitter(200, 0, 0.1));
  CHECK(samples.front().value > still);
}

TEST_CASE("a thousand samples allocate what ten do", "[jitter]") {
  const LoweredProgram program = program_of("1f1b", 4, {8});
  CostTable costs = slow_links(4);
  Simulator simulator(program);
  const auto allocated = [&](int samples) {
    const std::size_t before = allocations();
    (void)simulator.sample(costs, jitter(samples, 0, 0.1, 0.1));
    return allocations() - before;
  };
  (void)allocated(1);  // the first run makes room for prices
  CHECK(allocated(1000) == allocated(10));
  costs.network.levels[0].shared_by = SharedBy::child;
  (void)allocated(1);  // the first run over shared links prepares them
  CHECK(allocated(1000) == allocated(10));
}
