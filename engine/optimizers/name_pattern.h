#pragma once

// Shell patterns of parameters' names: `*` for any characters, `?` for one, `[ab]` for one of them.

#include <string>
#include <vector>

namespace stagecraft {

[[nodiscard]] bool matches(const std::string& pattern, const std::string& name);
[[nodiscard]] bool matches_any(const std::vector<std::string>& patterns, const std::string& name);

}  // namespace stagecraft
