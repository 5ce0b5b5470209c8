#pragma once

// Hardware queues of a device. Streams that share one wait for each other, and a receive that waits behind
// another may wait for ever. CUDA reads the number when it starts, so this is asked for before its first
// call.

#include <algorithm>
#include <cstdlib>

namespace stagecraft {

inline constexpr const char* kQueuesVariable = "CUDA_DEVICE_MAX_CONNECTIONS";

/// The most there are, where nobody has set another number.
inline void ask_for_queues() { ::setenv(kQueuesVariable, "32", /*overwrite=*/0); }

inline int queues() {
  constexpr int kDefault = 8;  // the driver's
  const char* const asked = std::getenv(kQueuesVariable);
  return asked != nullptr ? std::max(0, std::atoi(asked)) : kDefault;
}

}  // namespace stagecraft
