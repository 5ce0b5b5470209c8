#pragma once

// Text that a terminal shows instead of obeying. Names come from files that others wrote, and a terminal
// takes control characters in them for commands: to retitle the window, to clear it, to answer as if typed.

#include <string>
#include <string_view>

namespace stagecraft {

/// `text` with its control characters written out: "\u001b" for the C0 set (but tab and the ends of lines),
/// DEL, the C1 set and the characters that reorder text or end lines (U+202E and its like), "\xff" for a
/// byte that is not UTF-8. JSON stays the same JSON: there they can only stand inside strings, where
/// "\u009b" means the character itself.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace stagecraft
