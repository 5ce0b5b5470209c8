#include "base/statistics.h"

#include <algorithm>
#include <cmath>

namespace stagecraft {

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  return std::lerp(values[below], values[std::min(below + 1, values.size() - 1)], at - std::floor(at));
}

double relative_change(double from, double to) { return from == to ? 0 : (to - from) / from; }

}  // namespace stagecraft
