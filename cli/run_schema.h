#pragma once

// The JSON Schema of run.json, which only the engine knows.

#include "base/json.h"

namespace stagecraft::cli {

/// Throws InputError in a build without the engine.
[[nodiscard]] Json run_schema();

}  // namespace stagecraft::cli
