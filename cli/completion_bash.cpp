#include "cli/closed_set.h"
#include "cli/completion.h"
#include "cli/help_format.h"
#include "cli/shown_options.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft::cli {
namespace {

std::vector<std::string> positional_words(const CLI::App& verb) {
  for (const CLI::Option* option : shown_options(verb)) {
    if (option->get_positional()) return words_of(*option);
  }
  return {};
}

/// One `case` branch per option with a value: its words, file names, or nothing to offer.
std::string bash_values(const CLI::App& verb) {
  std::string text;
  for (const CLI::Option* option : shown_options(verb)) {
    const std::vector<std::string> names = spellings(*option);
    if (names.empty() || value_name_of(*option).empty()) continue;
    const std::vector<std::string> words = words_of(*option);
    text += fmt::format("        {}) {} ;;\n", fmt::join(names, "|"),
                        !words.empty()        ? fmt::format("_stagecraft_words \"{}\"", fmt::join(words, " "))
                        : takes_file(*option) ? "_stagecraft_files"
                                              : "COMPREPLY=()");
  }
  return text;
}

std::string bash_verb(const CLI::App& verb) {
  std::vector<std::string> all;
  for (const CLI::Option* option : shown_options(verb)) {
    for (const std::string& name : spellings(*option)) all.push_back(name);
  }
  const std::vector<std::string> words = positional_words(verb);
  return fmt::format(
      R"(    {0})
      case "$previous" in
{1}        *)
          if [[ $word == -* ]]; then _stagecraft_words "{2}"; else {3}; fi ;;
      esac ;;
)",
      verb.get_name(), bash_values(verb), fmt::join(all, " "),
      words.empty() ? "_stagecraft_files" : fmt::format("_stagecraft_words \"{}\"", fmt::join(words, " ")));
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::vector<std::string> verbs;
  std::string branches;
  for (const CLI::App* verb : shown_verbs(app)) {
    verbs.push_back(verb->get_name());
    branches += bash_verb(*verb);
  }
  return fmt::format(R"(# bash completion of stagecraft, written by `stagecraft completion bash`.

# Words that begin with what is typed; behind a comma, of a list's last element.
_stagecraft_words() {{
  local list="" last="$word"
  if [[ $word == *,* ]]; then
    list="${{word%,*}},"
    last="${{word##*,}}"
  fi
  COMPREPLY=($(compgen -P "$list" -W "$1" -- "$last"))
}}

_stagecraft_files() {{
  compopt -o filenames 2> /dev/null
  COMPREPLY=($(compgen -f -- "$word"))
}}

_stagecraft() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  if [[ $word == "=" ]]; then  # --option=, which readline splits
    word=""
  elif [[ $previous == "=" ]]; then
    previous="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
  if ((COMP_CWORD == 1)); then
    _stagecraft_words "{} --help --version"
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{}  esac
}}

complete -F _stagecraft stagecraft
)",
                     fmt::join(verbs, " "), branches);
}

}  // namespace stagecraft::cli
