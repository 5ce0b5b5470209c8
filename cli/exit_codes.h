#pragma once

// What the command's exit codes mean (base/error.h has the exceptions behind them).

#include "base/failure.h"

#include <string>
#include <vector>

namespace stagecraft::cli {

struct ExitCode {
  int code;
  const char* meaning;
};

[[nodiscard]] const std::vector<ExitCode>& exit_codes();
[[nodiscard]] std::string exit_codes_text();  ///< a line each

}  // namespace stagecraft::cli
