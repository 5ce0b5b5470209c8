#pragma once

// Threads of a transport beside those of its ranks.

#include <functional>
#include <thread>

namespace stagecraft::transport {

/// A thread that takes no signals: these are for the process's own threads. `name`: 15 letters at most, for
/// debuggers. Throws std::system_error where none can be had.
[[nodiscard]] std::thread quiet_thread(const char* name, std::function<void()> loop);

}  // namespace stagecraft::transport
