#pragma once

#include <vector>

namespace stagecraft {

/// The value below which `share` (0 to 1) of the values lies, linear between neighbours; 0 for no values.
[[nodiscard]] double quantile(std::vector<double> values, double share);

/// From one figure to another, as a share of the first; 0 where they are equal, both being 0 included. Infinite
/// from 0 to anything else, which every format_... of table.h shows as "-".
[[nodiscard]] double relative_change(double from, double to);

}  // namespace stagecraft
