#include "base/text.h"

#include <algorithm>
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

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

std::string_view take_until(std::string_view& text, std::string_view ends) {
  const std::size_t at = std::min(text.find_first_of(ends), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return part;
}

std::string plural(std::int64_t n, std::string_view what) {
  const char* more = what.ends_with("ch") || what.ends_with('s') || what.ends_with('x') ? "es" : "s";
  return std::to_string(n).append(" ").append(what).append(n == 1 ? "" : more);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

}  // namespace stagecraft
