#include "engine/records/metrics/step_times.h"

#include "base/mix.h"
#include "base/statistics.h"

#include <bit>

namespace stagecraft {

void StepTimeSample::add(Seconds time) {
  if (added_++ == 0) {
    first_ = time;
    return;
  }
  const std::uint64_t draw = mix(static_cast<std::uint64_t>(added_));
  if (std::countr_zero(draw) < zero_bits_) return;
  held_.push_back({time.value, draw});
  if (held_.size() > kMost) thin_out();
}

void StepTimeSample::thin_out() {
  ++zero_bits_;
  std::erase_if(held_, [&](const Step& step) { return std::countr_zero(step.draw) < zero_bits_; });
}

std::int64_t StepTimeSample::steps() const { return added_ > 1 ? added_ - 1 : added_; }

StepTimes StepTimeSample::times() const {
  std::vector<double> times;
  for (const Step& step : held_) times.push_back(step.time);
  if (added_ == 1) times.push_back(first_.value);
  return {Seconds{quantile(times, 0.5)}, Seconds{quantile(times, 0.99)},
          Seconds{quantile(times, 0.75) - quantile(times, 0.25)}};
}

}  // namespace stagecraft
