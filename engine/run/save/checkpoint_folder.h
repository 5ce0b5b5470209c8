#pragma once

// A run's checkpoints/: which of its folders count, and how one comes and goes without ever being half there.
//
// A checkpoint is written as step-00000100.<random>.part, manifest.json last, synced, and renamed to
// step-00000100: from that moment it counts, at once and for good. Nobody else writes into a folder with that
// random name, ranks of a killed run that live on included.
//
// Only what a run made is ever removed: folders with such random names, which are of processes that were killed,
// and older checkpoints whose manifest has the run's identity. Everything else stays, whatever its name.

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

/// The complete checkpoints, oldest first; none where the folder is missing: folders (no links) with the exact
/// name of a step, and with a manifest.json. Throws InputError where that cannot be told: "there is none" would
/// start a run afresh.
[[nodiscard]] std::vector<std::string> complete_checkpoints(const std::string& folder);

/// The newest complete checkpoint, "" when there is none. Throws like complete_checkpoints.
[[nodiscard]] std::string newest_checkpoint(const std::string& folder);

/// Where step's checkpoint lies when it is complete.
[[nodiscard]] std::string checkpoint_path(const std::string& folder, std::int64_t step);

/// Makes an empty folder to write it in. Throws InputError, also where `folder` is a link or another user's.
[[nodiscard]] std::string begin_checkpoint(const std::string& folder, std::int64_t step);

/// Everything in `aside` is written and synced: puts it in its place. What may be there gets another name, and
/// the line that is returned says so (else it is empty). Throws InputError.
[[nodiscard]] std::string publish_checkpoint(const std::string& folder, const std::string& aside,
                                             std::int64_t step);

/// Gives complete checkpoints of later steps than `step` another name, so that this one is the newest.
void set_aside_later_checkpoints(const std::string& folder, std::int64_t step);

/// A line for each thing in the folder that has the name of a step, or nearly so, and is no checkpoint: it is left
/// as it is. Throws InputError.
[[nodiscard]] std::vector<std::string> strangers_in(const std::string& folder);

// What cannot be removed stays and is tried again the next time; a line for each says why.

/// Removes what was being written. Only for who holds the run directory.
std::vector<std::string> sweep_checkpoints(const std::string& folder);
/// Removes the oldest of `run` beyond `keep`; 0 keeps all.
std::vector<std::string> remove_older_checkpoints(const std::string& folder, std::int64_t keep,
                                                  const std::string& run);
/// Both, when a run is over: there is no next time.
std::vector<std::string> tidy_checkpoints(const std::string& folder, std::int64_t keep,
                                          const std::string& run);

}  // namespace stagecraft
