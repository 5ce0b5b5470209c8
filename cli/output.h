#pragma once

// What verbs print. People get text on stdout; with --json, programs get exactly one JSON document there.
// Progress, notes and errors go to stderr, so that stdout can always be piped.

#include "schedules/base/json.h"

#include <string_view>

namespace stagecraft::cli {

/// To stdout, as it is.
void print(std::string_view text);
/// One document, indented by two, with a newline at its end.
void print_json(const Json& json);
/// A remark to stderr: "stagecraft: note: ...".
void note(std::string_view text);

/// Flushes stdout. Throws std::runtime_error when not all of it could be written: a full disk behind a
/// redirect must not look like success.
void finish_output();

}  // namespace stagecraft::cli
