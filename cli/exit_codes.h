#pragma once

// What the command's exit codes mean (base/error.h has the exceptions behind them).

#include <string>

namespace stagecraft::cli {

[[nodiscard]] std::string exit_codes_text();  ///< a line each

}  // namespace stagecraft::cli
