#pragma once

// Files that verbs write where the command line says.

#include "stagecraft/base/json.h"

#include <string>
#include <string_view>

namespace stagecraft::cli {

/// As write_file_atomically (base/files.h). Throws InputError, besides, where the file would be one of a run's
/// records: a report drawn over metrics.jsonl would be the end of the run.
void write_output(const std::string& path, std::string_view contents);
void write_json_output(const std::string& path, const Json& json);

}  // namespace stagecraft::cli
