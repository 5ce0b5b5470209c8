#include "stagecraft/cli/commands.h"
#include "stagecraft/cli/errors.h"
#include "stagecraft/cli/output.h"

#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  using namespace stagecraft::cli;
  CLI::App app{"Stagecraft trains sequential models as pipelines: profile, plan, prove, train, report.",
               "stagecraft"};
  app.set_version_flag("--version", "stagecraft " STAGECRAFT_VERSION);
  app.require_subcommand(1);
  add_verbs(app);
  app.footer(  // after the verbs, or each would repeat it

      "`stagecraft VERB --help` lists a verb's options. Exit codes: 0 done, 2 bad usage or input, 3 refused\n"
      "(unsafe program, or nothing fits), 4 a peer died or hung, 75 stopped by a signal (go on with "
      "--resume),\n"
      "1 anything else.");
  try {
    check_verb(app, argc, argv);
    app.parse(argc, argv);
    finish_output();
    return 0;
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error);
  } catch (...) {
    return report_exception();
  }
}
