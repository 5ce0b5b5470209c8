#pragma once

#include <algorithm>
#include <cmath>

namespace stagecraft::test {

/// Equal but for rounding.
inline bool near(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(1.0, std::max(a, b)); }

}  // namespace stagecraft::test
