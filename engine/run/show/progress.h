#pragma once

// What a run shows while it goes on: lines, and a progress bar that is drawn over itself.

#include "base/ids.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace stagecraft {

/// Where text for people goes. Does not wait for them: ranks wait for the one that prints.
using Print = std::function<void(const std::string& text)>;

struct Screen {
  Print print;  ///< empty: none (--json)
  Print draw;   ///< what the next drawing replaces, and what may be dropped; empty: no terminal
};

class ProgressBar {
 public:
  ProgressBar(std::int64_t first_step, std::int64_t steps, Print draw);
  ~ProgressBar();  ///< takes the line away
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `elapsed` since the first step began. Draws at most ten times per second.
  void update(std::int64_t step, Seconds elapsed);
  /// Before anything else is printed: the line must not be left among the others.
  void clear();

 private:
  std::int64_t first_;
  std::int64_t steps_;
  Print draw_;
  bool drawn_ = false;
  Seconds last_{-1};
};

/// Until step `steps`, where `elapsed` has brought a session from `first` to `step`; none before its first step and at the
/// end.
[[nodiscard]] std::optional<Seconds> time_left(std::int64_t first, std::int64_t step, std::int64_t steps,
                                               Seconds elapsed);

/// "[=====>    ] 120/300  40.0 %  1 min 2 s left", `elapsed` since step `first`. Pure.
[[nodiscard]] std::string progress_text(std::int64_t first, std::int64_t step, std::int64_t steps,
                                        Seconds elapsed);

}  // namespace stagecraft
