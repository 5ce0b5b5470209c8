#pragma once

// The path that was meant, for messages about one at which nothing is.

#include <string>
#include <system_error>

namespace stagecraft {

/// `; did you mean "runs/mine"?` where a name on the way to `path` is missing and one near it lies in its folder; else "".
/// Looks at a thousand names at most.
[[nodiscard]] std::string path_meant(const std::string& path);

/// "cannot be opened: No such file or directory; did you mean ...?"
[[nodiscard]] std::string not_opened(const std::string& path, const std::error_code& error);

}  // namespace stagecraft
