#pragma once

// "3 of 12, zb_h1: searching: placement 3 of 9, best step 12.3 ms" on stderr while planning goes on.

#include "partitioner/search/planner.h"

#include <chrono>
#include <string>
#include <unistd.h>

namespace stagecraft::cli {

/// On a terminal only, and not before a second has passed. Wiped out in the end.
class SearchLine {
 public:
  SearchLine() = default;
  SearchLine(const SearchLine&) = delete;
  SearchLine& operator=(const SearchLine&) = delete;
  ~SearchLine();

  void show(const SearchProgress& progress);
  /// Which of several schedules is under way.
  void show(const std::string& schedule, int tried, int all);

 private:
  using Clock = std::chrono::steady_clock;
  void draw(const std::string& text);

  std::string choosing_;
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  Clock::time_point last_ = Clock::now();
};

}  // namespace stagecraft::cli
