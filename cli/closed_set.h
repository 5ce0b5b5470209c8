#pragma once

// Options whose values are words of a closed set. A wrong word is answered with the nearest one, and the
// shells' completion offers them all.

#include <string>
#include <vector>

namespace CLI {
class Option;
}

namespace stagecraft::cli {

/// The option takes these words alone.
CLI::Option* only(CLI::Option* option, const std::vector<std::string>& words);
/// Completion offers these words; whoever reads the value judges it.
CLI::Option* offer(CLI::Option* option, const std::vector<std::string>& words);

/// The words of `only` and `offer`; empty for an option with neither.
[[nodiscard]] std::vector<std::string> words_of(const CLI::Option& option);

}  // namespace stagecraft::cli
