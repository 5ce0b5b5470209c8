#pragma once

// What standard output is connected to.

#include <cstddef>

namespace stagecraft::cli {

struct Terminal {
  bool present = false;  ///< stdout is one
  int columns = 100;     ///< from the terminal; else COLUMNS, where that is set
  int lines = 0;         ///< 0: not a terminal, as many as one likes
  bool colors = false;   ///< a terminal that is not dumb, and NO_COLOR is not set (no-color.org)
};

[[nodiscard]] Terminal standard_output();

}  // namespace stagecraft::cli
