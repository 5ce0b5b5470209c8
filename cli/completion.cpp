// `stagecraft completion SHELL` (hidden): what a shell needs to complete verbs, options and their values, made
// from the command's own options. The build installs it.

#include "stagecraft/base/files.h"
#include "stagecraft/cli/closed_set.h"
#include "stagecraft/cli/commands.h"
#include "stagecraft/cli/help_format.h"
#include "stagecraft/cli/output.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

namespace stagecraft::cli {
namespace {

std::vector<const CLI::App*> shown_verbs(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* verb) { return !verb->get_group().empty(); });
}

std::vector<const CLI::Option*> shown_options(const CLI::App& verb) {
  return verb.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

/// "-o", "--output"; empty for a positional.
std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> names;
  if (!option.nonpositional()) return names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool takes_value(const CLI::Option& option) { return !value_name_of(option).empty(); }
bool takes_file(const CLI::Option& option) {
  const std::string value = value_name_of(option);
  return value.starts_with("FILE") || value == "DIR";
}

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
    if (names.empty() || !takes_value(*option)) continue;
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
                          takes_value(*option) ? zsh_action(*option) : "");
    }
  }
  return text;
}

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

struct CompletionOptions {
  std::string shell;
  std::string output;
};

}  // namespace

void add_completion(CLI::App& app) {
  const auto options = std::make_shared<CompletionOptions>();
  CLI::App* verb = app.add_subcommand("completion", "print a shell's completion of this command")->group("");
  only(verb->add_option("SHELL", options->shell, "which shell")->type_name("SHELL")->required(),
       {"bash", "zsh"});
  verb->add_option("-o,--output", options->output, "where it goes (default: standard output)")
      ->type_name("FILE")
      ->group("Output");
  verb->callback([options, &app] {
    const std::string text = options->shell == "bash" ? bash_completion(app) : zsh_completion(app);
    if (options->output.empty()) {
      print(text);
    } else {
      write_file_atomically(options->output, text);
    }
  });
}

}  // namespace stagecraft::cli
