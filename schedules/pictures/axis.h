#pragma once

// Ticks at round numbers, for every picture's time axis.

#include "base/ids.h"

#include <string>
#include <vector>

namespace stagecraft::pictures {

struct Axis {
  std::vector<Seconds> ticks;
  std::vector<std::string> labels;  ///< the first one with the unit: "0 ms"
};

/// About `most` ticks of [begin, end] seconds, at 1, 2 or 5 times a power of ten.
[[nodiscard]] Axis axis_of(double begin, double end, double most);

}  // namespace stagecraft::pictures
