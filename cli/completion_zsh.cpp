#include "cli/closed_set.h"
#include "cli/completion.h"
#include "cli/help_format.h"
#include "cli/shown_options.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft::cli {
namespace {

/// Within a single-quoted specification of _arguments, brackets and colons have a meaning.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out;
}

std::string zsh_action(const CLI::Option& option) {
  const std::vector<std::string> words = words_of(option);
  const std::string value =
      zsh_text(option.get_positional() ? option.get_name(true, false) : value_name_of(option));
  if (words.empty()) return fmt::format(":{}:{}", value, takes_file(option) ? "_files" : " ");
  const bool list = value.starts_with("NAME,");
  return list ? fmt::format(":{}:_values -s , word {}", value, fmt::join(words, " "))
              : fmt::format(":{}:({})", value, fmt::join(words, " "));
}

std::string zsh_options(const CLI::App& verb) {
  std::string text;
  for (const CLI::Option* option : shown_options(verb)) {
    if (option->get_positional()) {
      text += fmt::format(" \\\n        '1{}'", zsh_action(*option));
      continue;
    }
    for (const std::string& name : spellings(*option)) {
      text += fmt::format(" \\\n        '{}[{}]{}'", name, zsh_text(option->get_description()),
                          value_name_of(*option).empty() ? "" : zsh_action(*option));
    }
  }
  return text;
}

}  // namespace

std::string zsh_completion(const CLI::App& app) {
  std::string verbs;
  std::string branches;
  for (const CLI::App* verb : shown_verbs(app)) {
    verbs += fmt::format("    '{}:{}'\n", verb->get_name(), zsh_text(verb->get_description()));
    branches += fmt::format("    {})\n      _arguments{} ;;\n", verb->get_name(), zsh_options(*verb));
  }
  return fmt::format(R"(#compdef stagecraft
# zsh completion of stagecraft, written by `stagecraft completion zsh`.

_stagecraft() {{
  local -a verbs
  verbs=(
{}  )
  if ((CURRENT == 2)); then
    _describe 'verb' verbs
    return
  fi
  local verb="$words[2]"
  shift words
  ((CURRENT--))
  case "$verb" in
{}  esac
}}

_stagecraft "$@"
)",
                     verbs, branches);
}

}  // namespace stagecraft::cli
