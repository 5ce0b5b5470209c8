#include "stagecraft/cli/usage_message.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <regex>

namespace stagecraft::cli {
namespace {

/// "0.000001" for "0.000001", "7" for "7.000000".
std::string without_zeros(std::string number) {
  if (number.find('.') == std::string::npos) return number;
  number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return number;
}

}  // namespace

// CLI11 hands out text alone, so its text is what is told apart here. What matches nothing stays as it is.
std::string usage_message(const CLI::ParseError& error) {
  static const std::regex kWrongType("Could not convert: (\\S+) = (.*)");
  static const std::regex kOutOfRange("(\\S+): Value (\\S+) not in range (\\S+) to (\\S+)");
  static const std::regex kTwice("(\\S+): At Most 1 required but received .*");
  static const std::regex kNoValue("(\\S+): 1 required .* missing");
  std::string what = error.what();
  std::smatch part;
  if (std::regex_match(what, part, kWrongType)) {
    return fmt::format("{}: expected a number, found \"{}\"", part.str(1), part.str(2));
  }
  if (std::regex_match(what, part, kOutOfRange)) {
    return fmt::format("{}: expected {} to {}, found {}", part.str(1), without_zeros(part[3]),
                       without_zeros(part[4]), part.str(2));
  }
  if (std::regex_match(what, part, kTwice)) return part.str(1) + " is given more than once";
  if (std::regex_match(what, part, kNoValue)) return part.str(1) + " needs a value";
  return what;
}

}  // namespace stagecraft::cli
