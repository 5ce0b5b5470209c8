#pragma once

// Options that have become verbs. They are hidden from --help, and using one throws InputError with the new
// command line.

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace stagecraft::cli {

struct OldSpelling {
  const char* verb;
  const char*
      option;       ///< "--explain", or with a value of an option that is still there: "--micro-batches auto"
  const char* now;  ///< what to write instead, behind `stagecraft`
};

[[nodiscard]] const std::vector<OldSpelling>& old_spellings();

/// Adds them to the verbs, which must be there.
void add_old_spellings(CLI::App& app);

/// Throws InputError: "plan --explain is now `stagecraft explain`". Requires one of old_spellings().
[[noreturn]] void refuse_old_spelling(const std::string& verb, const std::string& option);

}  // namespace stagecraft::cli
