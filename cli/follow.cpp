#include "base/error.h"
#include "cli/commands.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace stagecraft::cli {
namespace {

constexpr const char* kTool = "stagecraft-follow";

std::filesystem::path this_program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

/// Becomes the tool, which is Python's: the clients of what people watch runs in are. It asks this program for
/// the report.
[[noreturn]] void become_tool(const std::vector<std::string>& arguments) {
  const std::filesystem::path program = this_program();
  const std::string beside = (program.parent_path() / kTool).string();
  std::vector<char*> words{const_cast<char*>(kTool)};
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  if (!program.empty()) ::setenv("STAGECRAFT_PLANNER", program.c_str(), /*overwrite=*/0);
  ::execv(beside.c_str(), words.data());
  ::execvp(kTool, words.data());
  throw InputError(
      fmt::format("follow: there is no {0} beside this program ({1}) and none on the PATH: it comes with the "
                  "package for Python (pip install stagecraft), and scripts/{0} of the sources is it",
                  kTool, beside));
}

}  // namespace

void add_follow(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "follow", "send a run's figures to TensorBoard, W&B, trackio, MLflow, Prometheus or OpenTelemetry");
  verb->set_help_flag();  // the tool's own
  verb->prefix_command();
  verb->callback([verb] { become_tool(verb->remaining()); });
}

}  // namespace stagecraft::cli
