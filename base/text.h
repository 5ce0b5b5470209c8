#pragma once

// Reading text from the front.

#include <cstdint>
#include <optional>
#include <string_view>

namespace stagecraft {

/// Takes a non-negative number that fits off the front; nothing, and `text` as it was, when there is none.
[[nodiscard]] std::optional<std::int32_t> take_number(std::string_view& text);

}  // namespace stagecraft
