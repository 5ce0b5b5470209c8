#include "cli/command_line.h"

#include "base/hangup.h"
#include "base/registry.h"
#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/memory_end.h"
#include "cli/output.h"

#include <CLI/CLI.hpp>

#include <csignal>

namespace stagecraft {

namespace {

int run_verb(int argc, char** argv) {
  using namespace cli;
  CLI::App app{"Stagecraft trains models as pipelines: profile, plan, prove, train, report.", "stagecraft"};
  app.set_version_flag("--version", "stagecraft " STAGECRAFT_VERSION);
  app.require_subcommand(1);
  add_verbs(app);
  try {
    check_verb(app, argc, argv);
    check_words(argc, argv);
    app.parse(argc, argv);
    finish_output();
    return 0;
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error);
  }
}

int ended(int exit_code) {
  cli::leave_launcher(cli::done_with(exit_code));
  return exit_code;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  cli::end_in_order_without_memory();
  cli::keep_standard_streams();
  hangup_as_given();
  freeze_registries();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails with a reason instead
  try {
    return ended(run_verb(argc, argv));
  } catch (...) {
    return ended(cli::report_exception());
  }
}

}  // namespace stagecraft
