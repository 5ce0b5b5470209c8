#pragma once

// What a shell needs to complete verbs, options and their values, made from the command's own options. Values
// of a closed set are completed, and file names where a file is expected.

#include <string>

namespace CLI {
class App;
}

namespace stagecraft::cli {

[[nodiscard]] std::string bash_completion(const CLI::App& app);
[[nodiscard]] std::string zsh_completion(const CLI::App& app);

}  // namespace stagecraft::cli
