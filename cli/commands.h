#pragma once

// The subcommands, one file each. `add_x` registers the command, its options and a callback that does the
// work; errors leave as exceptions and become messages and exit codes in errors.cpp alone.

namespace CLI {
class App;
}

namespace stagecraft::cli {

/// All verbs of this build, in the order of --help (verbs.cpp).
void add_verbs(CLI::App& app);
/// The verbs that need LibTorch and MPI: engine_verbs.cpp, or in a build without the engine
/// no_engine_verbs.cpp, where each of them says so.
void add_engine_verbs(CLI::App& app);

void add_plan(CLI::App& app);
void add_check(CLI::App& app);
void add_simulate(CLI::App& app);
void add_convert(CLI::App& app);
void add_report(CLI::App& app);
// With the engine only (STAGECRAFT_ENGINE=ON):
void add_profile(CLI::App& app);
void add_train(CLI::App& app);
void add_doctor(CLI::App& app);

}  // namespace stagecraft::cli
