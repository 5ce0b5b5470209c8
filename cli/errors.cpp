#include "cli/errors.h"

#include "base/error.h"
#include "base/failure.h"
#include "base/launch.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/torchrun_error.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cli/usage_message.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <csignal>
#include <iostream>
#include <string>
#include <vector>

namespace stagecraft::cli {
namespace {

int fail(int code, const std::string& message) noexcept {
  leave_torchrun_error({code, message});
  if (message.empty()) return code;  // another process of the run says it
  std::signal(SIGPIPE, SIG_IGN);     // of what is still to be flushed: the code tells more
  try {
    complain(error_line(message));
  } catch (...) {  // no memory for the line: the code says enough
  }
  return code;
}

/// The verb that was being parsed when the error came, or the app itself.
const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : *chosen.back();
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string describe_extras(const CLI::App& verb, const CLI::ParseError& error) {
  const std::vector<std::string> extras = verb.remaining();
  if (extras.empty()) return error.what();
  const std::string word = extras.front().substr(0, extras.front().find('='));
  if (!word.starts_with('-')) return fmt::format("\"{}\" was not expected here", extras.front());
  return fmt::format("unknown option {}{}", word, did_you_mean(word, option_names(verb)));
}

}  // namespace

void check_words(int argc, const char* const* argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const bool names = word.starts_with("--") && word.find('=') == word.size() - 1;
    if (!word.empty() && !names) continue;
    const std::string before = word.empty() ? argv[i - 1] : word.substr(0, word.size() - 1);
    if (detect_launch().rank > 0) throw InputError("");  // as below
    throw InputError(fmt::format("{}: {}expected something, found an empty text", argv[1],
                                 before.starts_with('-') ? before + ": " : ""));
  }
}

void check_verb(const CLI::App& app, int argc, const char* const* argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  const std::string word = argv[1];
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (verb->get_name() == word) return;
    if (!verb->get_group().empty()) verbs.push_back(verb->get_name());
  }
  if (detect_launch().rank > 0) throw InputError("");  // as below
  throw InputError(fmt::format("\"{}\" is not one of {}{}\nSee `stagecraft --help`.", word,
                               fmt::join(verbs, ", "), did_you_mean(word, verbs)));
}

int report_usage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    app.exit(error);  // prints the help or the version
    return std::cout.flush() ? 0 : fail(exit_code::kDefect, "cannot write to standard output");
  }
  if (detect_launch().rank > 0)
    return exit_code::kInput;  // every process was given the same words: one says it
  const CLI::App& verb = innermost(app);
  const bool no_verb = &verb == &app;
  const bool extras =
      dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr || (no_verb && !app.remaining().empty());
  if (no_verb && !extras) {
    complain(app.help() + "\n");
    return fail(exit_code::kInput, "give one of the verbs above");
  }
  const std::string name = no_verb ? "stagecraft" : "stagecraft " + verb.get_name();
  std::string what = extras ? describe_extras(verb, error) : usage_message(error);
  if (!no_verb) what = verb.get_name() + ": " + what;
  return fail(exit_code::kInput, fmt::format("{}\nSee `{} --help`.", what, name));
}

std::string error_line(const std::string& message) {
  return message.empty() ? "" : for_standard_error(fmt::format("stagecraft: {}\n", printable(message)));
}

int report_failure(const Failure& failure) { return fail(failure.code, failure.message); }

int report_exception() { return report_failure(failure_of(std::current_exception())); }

}  // namespace stagecraft::cli
