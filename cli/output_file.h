#pragma once

// Files that verbs write where the command line says.

#include "base/json.h"

#include <string>
#include <string_view>

namespace stagecraft::cli {

/// As write_file_atomically (base/files.h). Throws InputError, besides, where the file is there and is worth more
/// than what would take its place: one of a run's records (a report drawn over metrics.jsonl would be the end of
/// the run), a file of another kind (file_kind.h), or `input`, which the verb was given to read ("": none). So it does
/// for a name in .png, .pdf and the like, which promises what no verb writes.
void write_output(const std::string& path, std::string_view contents, const std::string& input = "");
void write_json_output(const std::string& path, const Json& json, const std::string& input = "");

/// Every file that a verb was given to write is named in its text, so that people see what became of their option.
/// With this line where a verb has no better one: "written to FILE: WHAT". Nothing for what is no file: a pipe or
/// /dev/stdout may be where the text goes.
void print_written(const std::string& path, std::string_view what);

/// Throws the same before what takes long, where a file of `kind` would be refused at its end. "" is no path.
void require_output(const std::string& path, const std::string& kind);

}  // namespace stagecraft::cli
