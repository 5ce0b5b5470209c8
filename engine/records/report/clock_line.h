#pragma once

// One machine's clock over another's, from times at which both met.

#include "base/ids.h"

#include <vector>

namespace stagecraft {

/// From one clock to another, of which these are the times of the same meetings. Before the first and behind the
/// last meeting clocks run on as between the two nearest.
class ClockLine {
 public:
  ClockLine(const std::vector<std::vector<Seconds>>& from, const std::vector<std::vector<Seconds>>& to);
  [[nodiscard]] Seconds operator()(Seconds time) const;

 private:
  struct Point {
    double from = 0;
    double ahead = 0;  ///< of the other clock
  };
  std::vector<Point> points_;  ///< by time
};

}  // namespace stagecraft
