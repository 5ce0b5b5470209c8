#pragma once

// The machine under a process.

#include <string>
#include <vector>

namespace stagecraft::transport {

/// Processors this process may run on (its affinity mask), ascending; all of the machine's where that cannot
/// be asked.
[[nodiscard]] std::vector<int> bound_cores();

/// What a process may use of its machine's processors.
struct CoreCounts {
  int machine =
      1;  ///< that all processes of a container may use at once: its CPU quota may be below the machine's
  int usable = 1;  ///< that this process may use: it may be bound to a part of them
};
[[nodiscard]] CoreCounts count_cores();

/// The same on all processes of one running kernel, in whatever container or network namespace: they share
/// its processors and its monotonic clock.
[[nodiscard]] std::string boot_id();

}  // namespace stagecraft::transport
