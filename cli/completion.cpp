// `stagecraft completion SHELL` (hidden), whose output the build installs.

#include "cli/completion.h"

#include "cli/closed_set.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/output_file.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>

namespace stagecraft::cli {
namespace {

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
      print_document(text);
    } else {
      write_output(options->output, text);
      print_written(options->output, fmt::format("the completion of {}", options->shell));
    }
  });
}

}  // namespace stagecraft::cli
