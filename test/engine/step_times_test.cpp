#include "engine/records/metrics/step_times.h"

#include "base/statistics.h"
#include "test/support/catch.h"

using namespace stagecraft;

namespace {

constexpr double kMillisecond = 1e-3;

/// Steps of 1 to 1000 ms in an order that repeats, every seventh an epoch's short last one of 0 ms.
double time_of(std::int64_t step) {
  return step % 7 == 6 ? 0 : kMillisecond * static_cast<double>(1 + step * 389 % 1000);
}

}  // namespace

TEST_CASE("the first step is left out of the figures where there are others", "[step_times]") {
  StepTimeSample sample;
  CHECK(sample.steps() == 0);
  CHECK(sample.times().median.value == 0);
  sample.add(Seconds{5});
  CHECK(sample.steps() == 1);
  CHECK(sample.times().median.value == 5);
  sample.add(Seconds{1});
  CHECK(sample.steps() == 1);
  CHECK(sample.times().p99.value == 1);
}

TEST_CASE("figures of up to 131,072 steps are those of all steps", "[step_times]") {
  StepTimeSample sample;
  std::vector<double> all;
  sample.add(Seconds{1e6});
  for (std::size_t i = 0; i < StepTimeSample::kMost; ++i) {
    all.push_back(time_of(static_cast<std::int64_t>(i)));
    sample.add(Seconds{all.back()});
  }
  CHECK(sample.steps() == static_cast<std::int64_t>(all.size()));
  CHECK(sample.times().median.value == quantile(all, 0.5));
  CHECK(sample.times().p99.value == quantile(all, 0.99));
  CHECK(sample.times().interquartile_range.value == quantile(all, 0.75) - quantile(all, 0.25));
}

TEST_CASE("a long run's figures are close to those of all its steps, in as much memory", "[step_times]") {
  StepTimeSample sample;
  std::vector<double> all;
  sample.add(Seconds{1e6});
  for (std::int64_t i = 0; i < 3'000'000; ++i) {
    all.push_back(time_of(i));
    sample.add(Seconds{all.back()});
  }
  CHECK(sample.steps() == 3'000'000);
  CHECK(sample.held() <= StepTimeSample::kMost);
  CHECK(sample.held() > StepTimeSample::kMost / 4);
  CHECK(sample.times().median.value == Approx(quantile(all, 0.5)).epsilon(0.02));
  CHECK(sample.times().p99.value == Approx(quantile(all, 0.99)).epsilon(0.02));
  CHECK(sample.times().interquartile_range.value ==
        Approx(quantile(all, 0.75) - quantile(all, 0.25)).epsilon(0.02));
}
