#pragma once

// What standard output and standard error are connected to.

#include <string>
#include <string_view>

namespace stagecraft::cli {

struct Terminal {
  bool present = false;  ///< stdout is one
  int columns = 100;     ///< from the terminal; else COLUMNS, where that is set
  int lines = 0;         ///< 0: not a terminal, as many as one likes
  bool colors = false;   ///< a terminal that is not dumb, and NO_COLOR is not set (no-color.org)
};

[[nodiscard]] Terminal standard_output();

/// Prose for standard error: wrapped for people where that is a terminal, at 120 columns or where it ends; as it is
/// elsewhere, a message in one line.
[[nodiscard]] std::string for_standard_error(std::string_view text);

}  // namespace stagecraft::cli
