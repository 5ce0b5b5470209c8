#pragma once

// Clocks of several machines beside each other. Monotonic clocks start anywhere, and no two run at the same rate:
// 50 ppm are 3 ms per minute. So all ranks meet in barriers several times over a run and note when, each by
// its own clock. Between two meetings one clock is a line over the other (engine/records/report/clock_line.h).

#include "base/ids.h"
#include "engine/transport/transport.h"

#include <cstddef>
#include <vector>

namespace stagecraft {

/// When one rank left the barriers of each meeting, by its own clock. The same number on all ranks.
class ClockMeetings {
 public:
  /// Barriers of a meeting: ranks leave one at times that differ by chance, so the middle difference counts.
  static constexpr std::size_t kBarriers = 7;
  /// Meetings that are kept. Beyond these, every other one goes, but the first and the last.
  static constexpr std::size_t kMost = 256;

  /// Collective.
  void meet(Transport& transport);
  /// Of one meeting, kBarriers times.
  void add(std::vector<Seconds> times);

  [[nodiscard]] const std::vector<std::vector<Seconds>>& times() const { return times_; }

 private:
  std::vector<std::vector<Seconds>> times_;
};

}  // namespace stagecraft
