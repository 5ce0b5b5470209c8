#pragma once

// The verbs, one file each. `add_x` registers the verb, its options and a callback that does the work; errors
// leave as exceptions and become messages and exit codes in errors.cpp alone.

namespace CLI {
class App;
}

namespace stagecraft::cli {

/// All verbs in the groups and the order of --help, and how --help looks (verbs.cpp).
void add_verbs(CLI::App& app);

void add_plan(CLI::App& app);
void add_compare(CLI::App& app);
void add_explain(CLI::App& app);
void add_replan(CLI::App& app);
void add_optimize_pipedream(CLI::App& app);
void add_check(CLI::App& app);
void add_simulate(CLI::App& app);
void add_follow(CLI::App& app);
void add_report(CLI::App& app);
void add_watch(CLI::App& app);
void add_convert(CLI::App& app);
void add_schema(CLI::App& app);

// These need LibTorch and MPI. A build without the engine hides them, and they say why they cannot work
// (no_engine_verbs.cpp).
void add_profile(CLI::App& app);
void add_train(CLI::App& app);
void add_check_layers(CLI::App& app);
void add_export(CLI::App& app);
void add_generate(CLI::App& app);
void add_doctor(CLI::App& app);

/// A process of a launcher that ends with this code before it has met the others: ends all, so that the launcher adds
/// nothing to what was said. Returns where there is nothing to do. Only a build with the engine has MPI.
void leave_launcher(int exit_code) noexcept;

// Hidden: what the build installs beside the command.
void add_completion(CLI::App& app);

}  // namespace stagecraft::cli
