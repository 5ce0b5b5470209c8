#pragma once

// Programs as JSON, for programs.

#include "base/json.h"
#include "schedules/program/program.h"

#include <string>

namespace stagecraft {

/// {"schedule", "kind", "stages": [[0, 1], [2]], "group_sizes": [2, 2, 1], "ranks": [[{"op": "forward",
/// "stage": 0, "micro_batch": 0, "version": 0, "group": 0}, ...]]}. On reading, `version` and (of a
/// micro-batch) `group` may be absent and then mean what they mean in the text. Throws InputError with `file`
/// and the pointer.
[[nodiscard]] Json to_json(const ScheduleProgram& program);
[[nodiscard]] ScheduleProgram program_from_json(const Json& json, const std::string& file);

}  // namespace stagecraft
