#pragma once

#include <string>

namespace stagecraft {

/// The same on all processes of one running kernel, in whatever container or network namespace: they share
/// its processors and its monotonic clock.
[[nodiscard]] std::string boot_id();

}  // namespace stagecraft
