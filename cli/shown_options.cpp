#include "cli/shown_options.h"

#include "cli/help_format.h"

#include <CLI/CLI.hpp>

namespace stagecraft::cli {

std::vector<const CLI::App*> shown_verbs(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* verb) { return !verb->get_group().empty(); });
}

std::vector<const CLI::Option*> shown_options(const CLI::App& verb) {
  return verb.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> names;
  if (!option.nonpositional()) return names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool takes_file(const CLI::Option& option) {
  const std::string value = value_name_of(option);
  return value.starts_with("FILE") || value == "DIR";
}

}  // namespace stagecraft::cli
