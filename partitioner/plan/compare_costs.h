#pragma once

// Comparing costs that were summed in different orders.

#include <limits>

namespace stagecraft {

/// The cost of what cannot be, and of the best before anything was found.
inline constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// What sums of the same costs in another order differ by at most, as a share.
inline constexpr double kRounding = 1e-12;

/// Less by more than rounding.
inline bool clearly_less(double a, double b) { return a < b * (1 - kRounding); }

}  // namespace stagecraft
