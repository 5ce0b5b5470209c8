#include "profiler/statistics.h"

#include "base/statistics.h"

namespace stagecraft {

Timing timing_of(const std::vector<Seconds>& samples) {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const Seconds sample : samples) values.push_back(sample.value);
  return {Seconds{quantile(values, 0.5)}, Seconds{quantile(values, 0.75) - quantile(values, 0.25)}};
}

}  // namespace stagecraft
