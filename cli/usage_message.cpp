#include "cli/usage_message.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <regex>

namespace stagecraft::cli {

// CLI11 hands out text alone, so its text is what is told apart here. What matches nothing stays as it is.
std::string usage_message(const CLI::ParseError& error) {
  static const std::regex kWrongType("Could not convert: (\\S+) = (.*)");
  static const std::regex kTwice("(\\S+): At Most 1 required but received .*");
  static const std::regex kNoValue("(\\S+): 1 required .* missing");
  std::string what = error.what();
  std::smatch part;
  if (std::regex_match(what, part, kWrongType)) {
    return fmt::format("{}: expected a number, found \"{}\"", part.str(1), part.str(2));
  }
  if (std::regex_match(what, part, kTwice)) return part.str(1) + " is given more than once";
  if (std::regex_match(what, part, kNoValue)) return part.str(1) + " needs a value";
  return what;
}

}  // namespace stagecraft::cli
