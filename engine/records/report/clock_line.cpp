#include "engine/records/report/clock_line.h"

#include "base/error.h"
#include "base/statistics.h"

#include <algorithm>
#include <cstddef>

namespace stagecraft {

ClockLine::ClockLine(const std::vector<std::vector<Seconds>>& from,
                     const std::vector<std::vector<Seconds>>& to) {
  STAGECRAFT_CHECK(from.size() == to.size(), "all ranks come to all meetings");
  for (std::size_t i = 0; i < from.size(); ++i) {
    STAGECRAFT_CHECK(from[i].size() == to[i].size() && !from[i].empty(), "a meeting has its barriers");
    std::vector<double> ahead;
    double first = from[i].front().value;
    for (std::size_t k = 0; k < from[i].size(); ++k) ahead.push_back((to[i][k] - from[i][k]).value);
    const Point point{first, quantile(ahead, 0.5)};
    // A clock that stands still between two meetings has no rate.
    if (points_.empty() || point.from > points_.back().from) points_.push_back(point);
  }
}

Seconds ClockLine::operator()(Seconds time) const {
  if (points_.empty()) return time;
  if (points_.size() == 1) return time + Seconds{points_.front().ahead};
  const auto behind = std::lower_bound(points_.begin() + 1, points_.end() - 1, time.value,
                                       [](const Point& point, double at) { return point.from < at; });
  const Point& one = *(behind - 1);
  const double share = (time.value - one.from) / (behind->from - one.from);
  return time + Seconds{one.ahead + share * (behind->ahead - one.ahead)};
}

}  // namespace stagecraft
