#include "cli/help_format.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace stagecraft::cli {
namespace {

constexpr std::size_t kColumn = 30;  // where descriptions begin
constexpr std::size_t kWidth = 100;

/// `left`, and `right` wrapped beside it.
std::string beside(std::string left, const std::string& right) {
  std::string out = "  " + std::move(left);
  std::size_t at = out.size();
  if (at >= kColumn - 1) {
    out += '\n';
    at = 0;
  }
  out.append(kColumn - at, ' ');
  at = kColumn;
  std::istringstream words(right);
  for (std::string word; words >> word;) {
    if (at > kColumn && at + 1 + word.size() > kWidth) {
      out += "\n" + std::string(kColumn, ' ');
      at = kColumn;
    } else if (at > kColumn) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
  return out + "\n";
}

bool has_verbs(const CLI::App& app) {
  return !app.get_subcommands([](const CLI::App*) { return true; }).empty();
}

class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string value = is_positional ? "" : value_name_of(*option);
    const std::string name = is_positional ? option->get_name(true, false) : names_of(*option);
    return beside(name + (value.empty() ? "" : " " + value), description_of(*option));
  }

  std::string make_subcommand(const CLI::App* verb) const override {
    return beside(verb->get_name(), verb->get_description());
  }

  std::string make_positionals(const CLI::App* app) const override {
    std::string out;
    for (const CLI::Option* option :
         app->get_options([](const CLI::Option* o) { return o->get_positional(); })) {
      out += make_option(option, true);
    }
    return out.empty() ? "" : "\n" + out;
  }

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    return make_description(app) + make_usage(app, std::move(name)) + make_positionals(app) +
           (has_verbs(*app) ? make_subcommands(app, mode) + groups_of(*app) : groups_of(*app)) +
           (app->get_footer().empty() ? "" : "\n" + app->get_footer());
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = "Usage: " + name;
    for (const CLI::Option* option :
         app->get_options([](const CLI::Option* o) { return o->get_positional(); })) {
      usage += " " + make_option_usage(option);
    }
    for (const CLI::Option* option :
         app->get_options([](const CLI::Option* o) { return o->nonpositional() && o->get_required(); })) {
      usage += " " + names_of(*option) + " " + value_name_of(*option);
    }
    return usage + (has_verbs(*app) ? " VERB [OPTIONS]\n" : " [OPTIONS]\n");
  }

 private:
  /// CLI11's own options come last: nobody who reads this looks for --help.
  [[nodiscard]] std::string groups_of(const CLI::App& app) const {
    constexpr const char* kOwn = "Options";
    std::vector<std::string> groups = app.get_groups();
    std::stable_partition(groups.begin(), groups.end(),
                          [](const std::string& group) { return group != kOwn; });
    std::string out;
    for (const std::string& group : groups) {
      const auto options = app.get_options(
          [&](const CLI::Option* o) { return o->get_group() == group && o->nonpositional(); });
      if (!group.empty() && !options.empty())
        out += make_group(group == kOwn ? "Help" : group, false, options);
    }
    return out;
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_format() { return std::make_shared<HelpFormat>(); }

std::string names_of(const CLI::Option& option) {
  std::string names = option.get_name(false, true);
  constexpr std::string_view kTurnedOff = "{false}";  // CLI11's mark of --no-x
  if (const std::size_t mark = names.find(kTurnedOff); mark != std::string::npos) {
    names.erase(mark, kTurnedOff.size());
  }
  return names;
}

std::string value_name_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();  // with what validates it behind colons
  return type.starts_with("NAME[:") ? type.substr(0, type.find(']') + 1) : type.substr(0, type.find(':'));
}

std::string description_of(const CLI::Option& option) {
  std::string text = option.get_description();
  if (!option.get_default_str().empty()) text += fmt::format(" (default: {})", option.get_default_str());
  for (const CLI::Option* needed : option.get_needs()) text += fmt::format(" (needs {})", needed->get_name());
  if (option.get_required()) text += " (required)";
  return text;
}

}  // namespace stagecraft::cli
