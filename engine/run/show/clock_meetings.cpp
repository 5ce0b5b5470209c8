#include "engine/run/show/clock_meetings.h"

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

}  // namespace stagecraft
