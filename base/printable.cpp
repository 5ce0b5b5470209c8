#include "base/printable.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

namespace stagecraft {
namespace {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 0;  ///< 0: not UTF-8 here
};

/// The code point at the front: the shortest form only, no surrogates, at most U+10FFFF.
CodePoint front(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) return {};
  std::uint32_t value = first & (0xFFU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return {};
    value = (value << 6U) | (byte(i) & 0x3FU);
  }
  const bool longer_than_needed = (bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (longer_than_needed || surrogate || value > 0x10FFFF) return {};
  return {value, bytes};
}

bool is_control(std::uint32_t c) {
  if (c == '\n' || c == '\t') return false;
  return c < 0x20 || (c >= 0x7F && c <= 0x9F);
}

/// Ends a line or turns the order in which what follows is shown (Unicode's Bidi_Control), so that a name
/// looks like another.
bool moves_text(std::uint32_t c) {
  return c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = front(text);
    if (next.bytes == 0) {
      out += fmt::format("\\x{:02x}", static_cast<std::uint8_t>(text.front()));
      text.remove_prefix(1);
      continue;
    }
    if (moves_text(next.value) || (is_control(next.value) && !text.starts_with("\r\n"))) {
      out += fmt::format("\\u{:04x}", next.value);
    } else {
      out += text.substr(0, next.bytes);
    }
    text.remove_prefix(next.bytes);
  }
  return out;
}

}  // namespace stagecraft
