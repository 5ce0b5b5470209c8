#pragma once

// The progress bar: one line on stderr that is drawn over itself, on a terminal only.

#include "schedules/base/ids.h"

#include <cstdint>
#include <string>

namespace stagecraft {

class ProgressBar {
 public:
  /// Silent unless stderr is a terminal (or `force`, for tests).
  ProgressBar(std::int64_t first_step, std::int64_t steps, bool force = false);
  ~ProgressBar();  ///< takes the line away
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `elapsed` since the first step began. Draws at most ten times a second.
  void update(std::int64_t step, Seconds elapsed);
  /// Before anything else is printed: the line must not be left among the others.
  void clear();

 private:
  std::int64_t first_;
  std::int64_t steps_;
  bool shown_;
  bool drawn_ = false;
  Seconds last_{-1};
};

/// "[=====>    ] 120/300  40.0 %  1 min 2 s left", `elapsed` since step `first`. Pure.
[[nodiscard]] std::string progress_text(std::int64_t first, std::int64_t step, std::int64_t steps,
                                        Seconds elapsed);

}  // namespace stagecraft
