#pragma once

// SHA-256 (FIPS 180-4): names files by their content where the name is compared across machines and tools.

#include <cstddef>
#include <string>
#include <string_view>

namespace stagecraft {

/// As 64 lower-case hex digits.
[[nodiscard]] std::string sha256(std::string_view bytes);
/// HMAC (RFC 2104) over it, likewise: only who knows the key can make it.
[[nodiscard]] std::string hmac_sha256(std::string_view key, std::string_view message);
/// Whether it is so many lower-case hex digits, so that it may become part of a path.
[[nodiscard]] bool is_hex(std::string_view text, std::size_t digits);

}  // namespace stagecraft
