#include "base/printable.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <cstdint>

namespace stagecraft {
namespace {

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
    const CodePoint next = first_code_point(text);
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
