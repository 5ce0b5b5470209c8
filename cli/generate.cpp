#include "cli/commands.h"
#include "cli/python_tools.h"

namespace stagecraft::cli {

void add_generate(CLI::App& app) {
  add_tool(app, "generate",
           "continue a prompt with a language model that a run trained (transformers does it)");
}

}  // namespace stagecraft::cli
