#pragma once

// What of the command people see, for the manual and the shells: hidden verbs and options are left out.

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stagecraft::cli {

[[nodiscard]] std::vector<const CLI::App*> shown_verbs(const CLI::App& app);
[[nodiscard]] std::vector<const CLI::Option*> shown_options(const CLI::App& verb);
/// "-o", "--output"; empty for a positional.
[[nodiscard]] std::vector<std::string> spellings(const CLI::Option& option);
/// Whether its value is the path of a file or a directory.
[[nodiscard]] bool takes_file(const CLI::Option& option);

}  // namespace stagecraft::cli
