#pragma once

// Runs the built `stagecraft` as a user would, and keeps what it said.

#include "test/support/scratch_folder.h"

#include <string>
#include <vector>

namespace stagecraft::test {

struct CommandResult {
  int code = -1;  ///< exit code; 128 + n when signal n ended it
  std::string out;
  std::string err;
};

/// `arguments` go to the binary as they are, without a shell. Standard input is empty.
[[nodiscard]] CommandResult stagecraft(const std::vector<std::string>& arguments);

/// Whether `part` occurs in what was said.
[[nodiscard]] inline bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace stagecraft::test
