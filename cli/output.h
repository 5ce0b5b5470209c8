#pragma once

// What verbs print. People get text on stdout; with --json, programs get exactly one JSON document there.
// Progress, notes and errors go to stderr, so that stdout can always be piped.

#include "stagecraft/base/json.h"

#include <string>
#include <string_view>

namespace stagecraft::cli {

/// To stdout. Control characters, which only names from files can bring, are shown, not sent (printable.h).
void print(std::string_view text);
/// To stdout as it is: for what draws in colors. Holds no name from a file.
void print_drawing(std::string_view text);
/// One document, indented by two, with a newline at its end. What is not UTF-8 becomes U+FFFD.
void print_json(const Json& json);
[[nodiscard]] std::string json_text(const Json& json);  ///< what print_json prints

/// "stagecraft: note: ...", a line as it goes to stderr.
[[nodiscard]] std::string note_line(std::string_view text);
/// A remark to stderr.
void note(std::string_view text);

/// Flushes stdout. Throws std::runtime_error when not all of it could be written: a full disk behind a
/// redirect must not look like success.
void finish_output();

}  // namespace stagecraft::cli
