#include "base/launch.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/help_format.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <string_view>

namespace stagecraft::cli {
namespace {

/// Processes of a launcher work together in these, or say what each is.
constexpr std::array<std::string_view, 3> kTogether{"profile", "train", "doctor"};

/// Verbs that hide themselves (group "") stay hidden.
void add_group(CLI::App& app, const char* group, std::initializer_list<void (*)(CLI::App&)> verbs) {
  for (const auto add : verbs) {
    add(app);
    CLI::App* verb = app.get_subcommands([](const CLI::App*) { return true; }).back();
    if (!verb->get_group().empty()) verb->group(group);
    const std::string name = verb->get_name();
    if (std::find(kTogether.begin(), kTogether.end(), name) != kTogether.end()) continue;
    verb->parse_complete_callback([name] { require_alone(detect_launch(), "`" + name + "`"); });
  }
}

}  // namespace

void add_verbs(CLI::App& app) {
  app.formatter(help_format());
  // The order is that of --help, which is the order in which people use them.
  add_group(app, "Plan", {add_plan, add_compare, add_explain, add_replan, add_optimize_pipedream});
  add_group(app, "Prove and look", {add_check, add_simulate, add_check_layers});
  add_group(app, "Train",
            {add_profile, add_train, add_watch, add_follow, add_report, add_export, add_generate});
  add_group(app, "Convert and help", {add_convert, add_schema, add_doctor, add_completion});
  // After the verbs, or each would repeat it.
  app.footer(
      "`stagecraft VERB --help` lists a verb's options; `stagecraft completion bash|zsh` prints what the\n"
      "build installs. With Python come stagecraft-capture (models from PyTorch), stagecraft-tokenize,\n"
      "stagecraft-images (data) and `python -m stagecraft`.\n\nExit codes:\n" +
      exit_codes_text());
}

}  // namespace stagecraft::cli
