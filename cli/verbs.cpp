#include "stagecraft/cli/commands.h"

namespace stagecraft::cli {

// The order is that of --help, which is the order in which people use them.
void add_verbs(CLI::App& app) {
  add_plan(app);
  add_check(app);
  add_simulate(app);
  add_convert(app);
  add_report(app);
  add_engine_verbs(app);
}

}  // namespace stagecraft::cli
