#pragma once

// Prose in lines of a given width.

#include <string>
#include <string_view>

namespace stagecraft {

/// Each line that is wider than `columns` characters is broken at blanks, and what follows is indented by two more than
/// the line. A command in `backticks` stays whole, so that it can be copied; so do words that are wider.
[[nodiscard]] std::string wrapped(std::string_view text, int columns);

}  // namespace stagecraft
