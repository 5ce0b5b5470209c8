#include "engine/run/show/clock_meetings.h"

#include "base/error.h"
#include "base/statistics.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace stagecraft {

void ClockMeetings::meet(Transport& transport) {
  std::vector<Seconds> times;
  for (std::size_t i = 0; i < kBarriers; ++i) {
    transport.barrier();
    times.emplace_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
  }
  add(std::move(times));
}

void ClockMeetings::add(std::vector<Seconds> times) {
  times_.push_back(std::move(times));
  if (times_.size() <= kMost) return;
  std::vector<std::vector<Seconds>> kept;
  for (std::size_t i = 0; i < times_.size(); ++i) {
    if (i % 2 == 0 || i + 1 == times_.size()) kept.push_back(std::move(times_[i]));
  }
  times_ = std::move(kept);
}

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
