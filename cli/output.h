#pragma once

// What verbs print. People get text on stdout; with --json, programs get exactly one JSON document there.
// Progress, notes and errors go to stderr, so that stdout can always be piped.

#include "base/json.h"

#include <string>
#include <string_view>

namespace stagecraft::cli {

/// Tables and prose for people, to stdout. No line is wider than a table may be (table.h): prose is wrapped. Control
/// characters, which only names from files can bring, are shown, not sent (printable.h).
void print(std::string_view text);
[[nodiscard]] std::string printed(std::string_view text);  ///< what print() prints
/// The same of a document that programs read too, such as a schedule: its lines stay as they are.
void print_document(std::string_view text);
/// To stdout as it is: for what draws in colors. Holds no name from a file.
void print_drawing(std::string_view text);
/// One document, indented by two, with a newline at its end. What is not UTF-8 becomes U+FFFD.
void print_json(const Json& json);
[[nodiscard]] std::string json_text(const Json& json);  ///< what print_json prints

/// "stagecraft: note: ...", a line as it goes to stderr.
[[nodiscard]] std::string note_line(std::string_view text);
/// A remark to stderr.
void note(std::string_view text);

/// To stderr as it is, behind what was printed. What cannot be written there is lost: a full disk, a closed
/// terminal or a reader that is gone must not change how the process ends.
void complain(std::string_view text) noexcept;

/// Gives a process that was started without standard streams (`2>&-`) ones that refuse what is written.
/// Otherwise the next files that it opens would be its standard streams, and messages would go into them.
void keep_standard_streams();

/// Flushes stdout. Throws std::runtime_error when not all of it could be written: a full disk behind a
/// redirect must not look like success.
void finish_output();

}  // namespace stagecraft::cli
