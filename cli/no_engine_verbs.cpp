#include "stagecraft/base/error.h"
#include "stagecraft/cli/commands.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <string>

namespace stagecraft::cli {

// Known, hidden from --help, and refused with the reason: better than "no such verb" for somebody who follows
// the documentation with a planner-only build.
void add_engine_verbs(CLI::App& app) {
  for (const std::string name : {"profile", "train", "doctor"}) {
    CLI::App* verb = app.add_subcommand(name)->group("")->allow_extras()->prefix_command();
    verb->set_help_flag();
    verb->callback([name] {
      throw InputError(fmt::format(
          "{}: this build has no engine, only plan, check, simulate, convert and report; configure with "
          "-DSTAGECRAFT_ENGINE=ON (needs LibTorch and MPI)",
          name));
    });
  }
}

}  // namespace stagecraft::cli
