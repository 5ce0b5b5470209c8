#pragma once

// When ranks write what they show of a run that goes.

#include <chrono>
#include <cstdint>

namespace stagecraft {

/// Behind the third step of a session, so that people soon see something, and then some ten seconds apart by the clock,
/// whatever a step was predicted to take. Each rank says by its own clock, before a step, whether it wants records behind
/// it; they are due where all hear that one does, so that records are of the same steps.
class LiveTimes {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kInterval{10};
  static constexpr std::int64_t kFirstSteps = 3;

  /// `start`: the steps of the run that earlier sessions made.
  LiveTimes(std::int64_t start, Clock::time_point now)
      : first_(start + kFirstSteps), last_(now), step_end_(now) {}

  /// Behind the step that begins now, if it takes as long as the one before.
  [[nodiscard]] bool wants(Clock::time_point now) const { return now + step_ - last_ >= kInterval; }
  /// Behind the steps from `before` to `after` of the run; `asked`: whether a rank wants records, as all heard it.
  [[nodiscard]] bool due(std::int64_t before, std::int64_t after, bool asked, Clock::time_point now) {
    step_ = now - step_end_;
    step_end_ = now;
    const bool first = before < first_ && first_ <= after;
    if (first || asked) last_ = now;
    return first || asked;
  }

 private:
  std::int64_t first_;
  Clock::time_point last_;  ///< that records were due
  Clock::time_point step_end_;
  Clock::duration step_{};  ///< the newest
};

}  // namespace stagecraft
