#pragma once

// "3 of 12, zb_h1: searching: placement 3 of 9, best step 12.3 ms" on stderr while something takes long.

#include "partitioner/search/planner.h"

#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace stagecraft::cli {

/// On a terminal drawn over itself, not before a second has passed, and wiped out in the end. Into a pipe or a file a
/// line of its own every half a minute: who reads a log wants to know that it goes on.
class SearchLine {
 public:
  using Clock = std::chrono::steady_clock;
  struct Way {
    bool terminal;
    std::function<void(const std::string& text)> write;
    std::function<Clock::time_point()> now;
  };

  SearchLine() : SearchLine(standard_error()) {}
  explicit SearchLine(Way way) : way_(std::move(way)), last_(way_.now()) {}
  SearchLine(const SearchLine&) = delete;
  SearchLine& operator=(const SearchLine&) = delete;
  ~SearchLine();

  void show(const SearchProgress& progress);
  /// Which of several schedules is under way.
  void show(const std::string& schedule, int tried, int all);
  /// What takes seconds without a word between: drawn at once, on a terminal alone.
  void begin(const std::string& what);

 private:
  [[nodiscard]] static Way standard_error();
  void draw(const std::string& text);

  Way way_;
  std::string choosing_;
  bool drawn_ = false;
  Clock::time_point last_;
};

}  // namespace stagecraft::cli
