#include "cli/closed_set.h"

#include "base/nearest.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

namespace stagecraft::cli {
namespace {

/// The form in which CLI11's own sets describe themselves: words_of() reads it back from the option.
std::string set_text(const std::vector<std::string>& words) {
  return fmt::format("{{{}}}", fmt::join(words, ","));
}

}  // namespace

CLI::Option* only(CLI::Option* option, const std::vector<std::string>& words) {
  const auto judge = [words](const std::string& word) {
    if (std::ranges::find(words, word) != words.end()) return std::string();
    return fmt::format("\"{}\" is not one of {}{}", word, fmt::join(words, ", "), did_you_mean(word, words));
  };
  return option->check(CLI::Validator(judge, set_text(words)));
}

CLI::Option* offer(CLI::Option* option, const std::vector<std::string>& words) {
  return option->check(CLI::Validator([](const std::string&) { return std::string(); }, set_text(words)));
}

std::vector<std::string> words_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find(":{");
  if (open == std::string::npos) return {};
  std::istringstream set(type.substr(open + 2, type.find('}', open) - open - 2));
  std::vector<std::string> words;
  for (std::string word; std::getline(set, word, ',');) words.push_back(word);
  return words;
}

}  // namespace stagecraft::cli
