#include "profiler/statistics.h"

#include <algorithm>
#include <cmath>

namespace stagecraft {

namespace {

Seconds quantile(const std::vector<Seconds>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(position));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (position - std::floor(position));
}

}  // namespace

Timing timing_of(std::vector<Seconds> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {quantile(samples, 0.5), quantile(samples, 0.75) - quantile(samples, 0.25)};
}

}  // namespace stagecraft
