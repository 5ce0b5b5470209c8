#pragma once

#include "base/ids.h"

#include <algorithm>
#include <chrono>

namespace stagecraft {

/// Time in which this process ran. A clock also goes on while the process is stopped (SIGSTOP, `scontrol
/// suspend`) or its machine sleeps, and that time says nothing about the rank that is waited for. Whoever
/// waits reads its stopwatch many times per second, so a gap between two readings is time that somebody took
/// away: it counts as kLongestGap.
class Stopwatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Seconds kLongestGap{1};

  explicit Stopwatch(Clock::time_point now = Clock::now()) : read_at_(now) {}

  Seconds read(Clock::time_point now = Clock::now()) {
    passed_ += std::min(Seconds{std::chrono::duration<double>(now - read_at_).count()}, kLongestGap);
    read_at_ = now;
    return passed_;
  }
  void restart(Clock::time_point now = Clock::now()) { *this = Stopwatch(now); }

 private:
  Clock::time_point read_at_;
  Seconds passed_{0};
};

}  // namespace stagecraft
