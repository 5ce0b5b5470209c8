#pragma once

// The log file of one rank. Lines that cannot be written are lost: a log must not end the run it tells of.

#include "base/ids.h"

#include <memory>
#include <string>

namespace spdlog {
class logger;
}

namespace stagecraft {

inline constexpr Seconds kLogPatience{2};

/// Appends to `path`; `name` begins every line. Lines are written on a thread of the log's own, so that a disk that
/// hangs holds up nobody who logs; flush(), and the end of the logger, give it kLogPatience. Not registered with
/// spdlog, so ranks that are threads do not meet in it; for one thread. Throws InputError as open_to_append.
[[nodiscard]] std::shared_ptr<spdlog::logger> open_log(const std::string& path, const std::string& name);

}  // namespace stagecraft
