#pragma once

#include <vector>

namespace stagecraft {

/// The value below which `share` (0 to 1) of the values lies, linear between neighbours; 0 for no values.
[[nodiscard]] double quantile(std::vector<double> values, double share);

}  // namespace stagecraft
