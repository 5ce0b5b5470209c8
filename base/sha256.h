#pragma once

// SHA-256 (FIPS 180-4): names files by their content where the name is compared across machines and tools.

#include <string>
#include <string_view>

namespace stagecraft {

/// As 64 lower-case hex digits.
[[nodiscard]] std::string sha256(std::string_view bytes);

}  // namespace stagecraft
