#include "stagecraft/base/text.h"

#include <charconv>

namespace stagecraft {

std::optional<std::int32_t> take_number(std::string_view& text) {
  std::int32_t value = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

}  // namespace stagecraft
