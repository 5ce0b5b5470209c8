#pragma once

// Events of the last steps of a run, as the worker makes them.

#include "schedules/timeline.h"

#include <chrono>
#include <cstdint>
#include <vector>

namespace stagecraft {

class Recorder {
 public:
  using Clock = std::chrono::steady_clock;

  /// `steps`: how many of the last are kept; 0 records nothing and reads no clock.
  Recorder(Rank rank, int steps) : rank_(rank), steps_(steps), start_(Clock::now()) {}

  [[nodiscard]] bool on() const { return steps_ > 0; }
  /// Since the recorder was made.
  [[nodiscard]] Seconds now() const {
    return Seconds{std::chrono::duration<double>(Clock::now() - start_).count()};
  }
  /// Of the monotonic clock, when the recorder was made: where event times are 0.
  [[nodiscard]] Seconds origin() const {
    return Seconds{std::chrono::duration<double>(start_.time_since_epoch()).count()};
  }
  void record(const Action& action, std::int64_t step, Seconds begin, Seconds end);
  /// In the order they began.
  [[nodiscard]] const std::vector<Event>& events() const;

 private:
  void forget_old_steps() const;

  Rank rank_;
  int steps_;
  Clock::time_point start_;
  std::int64_t newest_ = 0;
  // Old steps go when the list is read or has doubled, not one by one.
  mutable std::vector<Event> events_;
  mutable std::size_t forget_at_ = 4096;
};

}  // namespace stagecraft
