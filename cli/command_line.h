#pragma once

// The command line as a function, for programs that add layers, data sets, schedules and more to it:
//
//   int main(int argc, char** argv) {
//     register_mine();
//     return stagecraft::run_command_line(argc, argv);
//   }

namespace stagecraft {

/// Freezes the registries, runs the verb that `argv` names and returns the process's exit code. Prints its
/// own errors. Call it once, and make no tensors before: it installs the allocator that counts their bytes.
[[nodiscard]] int run_command_line(int argc, char** argv);

}  // namespace stagecraft
