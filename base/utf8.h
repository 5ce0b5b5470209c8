#pragma once

// UTF-8, read from the front.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stagecraft {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 0;  ///< 0: no UTF-8 here
};

/// The code point at the front of a text that is not empty: the shortest form only, no surrogates, at most U+10FFFF.
[[nodiscard]] CodePoint first_code_point(std::string_view text);

}  // namespace stagecraft
