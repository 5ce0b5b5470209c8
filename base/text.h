#pragma once

// Reading text from the front.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stagecraft {

/// Takes a non-negative number that fits off the front; nothing, and `text` as it was, when there is none.
[[nodiscard]] std::optional<std::int32_t> take_number(std::string_view& text);
/// Takes `c` off the front; false, and `text` as it was, when something else stands there.
bool take(std::string_view& text, char c);
/// Takes what stands before the first of `ends`, and that; everything where there is none.
std::string_view take_until(std::string_view& text, std::string_view ends);
/// "1 layer", "2 layers".
[[nodiscard]] std::string plural(std::int64_t n, std::string_view what);
/// Without the blanks, tabs and carriage returns around it.
[[nodiscard]] std::string_view trimmed(std::string_view text);

}  // namespace stagecraft
