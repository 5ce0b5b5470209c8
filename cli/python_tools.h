#pragma once

// Verbs that are tools in Python, since what they need is Python's: this program becomes the tool.

#include <string>

namespace CLI {
class App;
}

namespace stagecraft::cli {

/// The verb `name` of `app` is the tool stagecraft-NAME beside this program or on the PATH, with all arguments. It finds
/// this program in STAGECRAFT and STAGECRAFT_PLANNER, for what it asks of it. Throws InputError where there is none.
void add_tool(CLI::App& app, const std::string& name, const std::string& what);

}  // namespace stagecraft::cli
