#include "cli/python_tools.h"

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

std::filesystem::path this_program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

/// The tool asks this program for what it can do itself: a report, an export.
[[noreturn]] void become_tool(const std::string& verb, const std::vector<std::string>& arguments) {
  const std::string tool = "stagecraft-" + verb;
  const std::filesystem::path program = this_program();
  const std::string beside = (program.parent_path() / tool).string();
  std::vector<char*> words{const_cast<char*>(tool.c_str())};
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  for (const char* name : {"STAGECRAFT_PLANNER", "STAGECRAFT"}) {
    if (!program.empty()) ::setenv(name, program.c_str(), /*overwrite=*/0);
  }
  ::execv(beside.c_str(), words.data());
  ::execvp(tool.c_str(), words.data());
  throw InputError(
      fmt::format("{0}: there is no {1} beside this program ({2}) and none on the PATH: it comes with the "
                  "package for Python (pip install stagecraft), and scripts/{1} of the sources is it",
                  verb, tool, beside));
}

}  // namespace

void add_tool(CLI::App& app, const std::string& name, const std::string& what) {
  CLI::App* verb = app.add_subcommand(name, what);
  verb->set_help_flag();  // the tool's own
  verb->prefix_command();
  verb->callback([verb, name] { become_tool(name, verb->remaining()); });
}

void add_follow(CLI::App& app) {
  add_tool(app, "follow",
           "send a run's figures to TensorBoard, W&B, trackio, MLflow, Prometheus or OpenTelemetry");
}

}  // namespace stagecraft::cli
