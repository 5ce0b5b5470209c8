#pragma once

namespace stagecraft::transport {

/// Processors this process may run on (its affinity mask), at least 1.
[[nodiscard]] int available_cores();

}  // namespace stagecraft::transport
