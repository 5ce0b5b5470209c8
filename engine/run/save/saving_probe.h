#pragma once

// Saving is tried before the first step, so that what would spoil a checkpoint after hours shows at once: a
// folder that is not shared by all machines, a read-only disk, a quota, names the file system does not take,
// too little space.

#include "engine/run/resolve/setup.h"
#include "engine/run/save/run_dir.h"
#include "engine/transport/transport.h"

namespace stagecraft {

/// Collective. Every rank makes a file in checkpoints/ under the longest name that a checkpoint will have,
/// writes, syncs, reads it back, and looks whether it sees those of all others. Rank 0 compares the space
/// that is left with what the checkpoints of the run take that are not there yet: keep and one more, or,
/// where all are kept, all. Returns how long it took. Throws InputError that names path and rank. `unfinished`:
/// the folder for it, until it is removed; on an error it stays, since other ranks use it still.
Seconds try_saving(const RunSetup& setup, const RunPaths& paths, Transport& transport,
                   std::string& unfinished);

/// Checkpoints that the run will have on disk at once, at most.
[[nodiscard]] std::int64_t checkpoints_at_once(const RunSetup& setup);

}  // namespace stagecraft
