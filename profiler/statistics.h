#pragma once

// Robust figures of a few repeats.

#include "partitioner/plan/profile.h"

#include <vector>

namespace stagecraft {

/// Median and interquartile range (linear between neighbours); zeros for no samples.
[[nodiscard]] Timing timing_of(const std::vector<Seconds>& samples);

}  // namespace stagecraft
