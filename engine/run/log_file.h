#pragma once

// The log file of one rank. Lines that cannot be written are lost: a log must not end the run it tells of.

#include <memory>
#include <string>

namespace spdlog {
class logger;
}

namespace stagecraft {

/// Appends to `path`; `name` begins every line. Not registered with spdlog, so ranks that are threads do not
/// meet in it; for one thread. Throws InputError when the file cannot be opened: unwritable, or a link in its
/// place.
[[nodiscard]] std::shared_ptr<spdlog::logger> open_log(const std::string& path, const std::string& name);

}  // namespace stagecraft
