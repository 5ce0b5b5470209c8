#pragma once

// The machine under a process.

#include <string>

namespace stagecraft::transport {

/// Processors this process may run on (its affinity mask), at least 1.
[[nodiscard]] int available_cores();

/// The same on all processes of one running kernel, in whatever container or network namespace: they share
/// its processors and its monotonic clock.
[[nodiscard]] std::string boot_id();

}  // namespace stagecraft::transport
