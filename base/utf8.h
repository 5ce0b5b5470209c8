#pragma once

// UTF-8, read from the front, and how wide it stands.

#include <algorithm>
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

/// Not a byte within a character.
[[nodiscard]] inline bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
}

/// Its beginning, of so many bytes at most; no character is cut.
[[nodiscard]] inline std::string_view beginning_of(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && !begins_character(text[most])) --most;
  return text.substr(0, most);
}

/// Columns that a text takes: its characters, so that "µ" counts as one.
[[nodiscard]] inline std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

}  // namespace stagecraft
