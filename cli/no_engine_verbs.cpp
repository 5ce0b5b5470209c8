#include "base/error.h"
#include "cli/commands.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <string>

namespace stagecraft::cli {
namespace {

// Known, hidden from --help, and refused with the reason: better than "no such verb" for somebody who follows
// the documentation with a planner-only build.
void add_missing(CLI::App& app, const std::string& name) {
  CLI::App* verb = app.add_subcommand(name)->group("")->allow_extras()->prefix_command();
  verb->set_help_flag();
  verb->callback([name] {
    throw InputError(fmt::format(
        "{}: this build has no engine, which {} needs: configure with -DSTAGECRAFT_ENGINE=ON (needs LibTorch "
        "and MPI); `stagecraft --help` lists the verbs that work here",
        name, name));
  });
}

}  // namespace

void add_profile(CLI::App& app) { add_missing(app, "profile"); }
void add_train(CLI::App& app) { add_missing(app, "train"); }
void add_check_layers(CLI::App& app) { add_missing(app, "check-layers"); }
void add_export(CLI::App& app) { add_missing(app, "export"); }
void add_generate(CLI::App& app) { add_missing(app, "generate"); }
void add_doctor(CLI::App& app) { add_missing(app, "doctor"); }

void leave_launcher(int /*exit_code*/) noexcept {}

}  // namespace stagecraft::cli
