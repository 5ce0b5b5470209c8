#pragma once

// Where every throw ends: a message on stderr, `stagecraft: <message>`, and the exit code that
// base/error.h gives its type. Nothing else in the program calls exit or prints an error.

#include "base/failure.h"

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace stagecraft::cli {

/// Throws InputError for a value that is empty: no option and no argument takes one.
void check_words(int argc, const char* const* argv);

/// Throws InputError when the first argument is a word but no verb of `app`, naming the nearest; CLI11 would
/// only say that a subcommand is required.
void check_verb(const CLI::App& app, int argc, const char* const* argv);

/// CLI11's way out: prints help or version and returns 0, or prints what was wrong with the options, with
/// the nearest option and where the help is, and returns 2.
int report_usage(const CLI::App& app, const CLI::ParseError& error);

/// An error as it goes to stderr; "" for one that another process of the run says.
[[nodiscard]] std::string error_line(const std::string& message);

/// Prints what went wrong and returns the exit code.
int report_failure(const Failure& failure);
/// The same of the exception in flight. Call from a catch block.
int report_exception();

}  // namespace stagecraft::cli
