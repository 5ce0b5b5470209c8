#pragma once

// What CLI11 says of wrong options, in our words.

#include <string>

namespace CLI {
class ParseError;
}

namespace stagecraft::cli {

/// "--stages: expected a number, found \"two\"": which option, what was expected, and what was found.
[[nodiscard]] std::string usage_message(const CLI::ParseError& error);

}  // namespace stagecraft::cli
