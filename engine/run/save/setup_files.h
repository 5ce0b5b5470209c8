#pragma once

// The files of a run directory that say what is run.

#include "engine/records/metrics/run_paths.h"
#include "engine/run/resolve/setup.h"

namespace stagecraft {

/// config.json and plan.json, in place of those that are there.
void write_setup(const RunPaths& paths, const RunSetup& setup);

}  // namespace stagecraft
