#pragma once

// How --help looks: groups, wrapped lines, values by their names, and the default at the end of each line.

#include <memory>
#include <string>

namespace CLI {
class FormatterBase;
class Option;
}  // namespace CLI

namespace stagecraft::cli {

[[nodiscard]] std::shared_ptr<CLI::FormatterBase> help_format();

/// "-o,--output".
[[nodiscard]] std::string names_of(const CLI::Option& option);
/// "N", "FILE"; empty for a flag.
[[nodiscard]] std::string value_name_of(const CLI::Option& option);
/// What --help says of it, with its default and what it needs.
[[nodiscard]] std::string description_of(const CLI::Option& option);

}  // namespace stagecraft::cli
