#pragma once

// Time against memory: what can be had, and the front of what nothing else beats in both.

#include "base/ids.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

struct FrontPoint {
  Seconds time;
  Bytes memory;
  std::string label;  ///< of a point on the front; others show it as a tooltip
  bool on_front = false;
};

/// Memory to the right, time upwards; the front as a line of steps with its labels, everything else near it
/// as small dots (how many lie farther off is said). `capacity` is drawn as a line where it lies in the
/// picture. Requires a point on the front.
[[nodiscard]] std::string front_svg(const std::string& title, const std::vector<FrontPoint>& points,
                                    std::optional<Bytes> capacity = std::nullopt);

}  // namespace stagecraft
