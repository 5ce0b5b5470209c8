#pragma once

// A run's checkpoints/: which of its folders count, and how one comes and goes without ever being half there.
//
// A checkpoint is written as step-00000100.<random>.part, `complete` last, synced, and renamed to
// step-00000100: from that moment it counts, at once and for good. Nobody else writes into a folder with that
// random name, ranks of a killed run that live on included. Whatever is not complete is of a process that was
// killed, and is swept.

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

/// The complete checkpoints, oldest first; none where the folder is missing. Throws InputError where that
/// cannot be told: "there is none" would start a run afresh.
[[nodiscard]] std::vector<std::string> complete_checkpoints(const std::string& folder);

/// The newest complete checkpoint, "" when there is none. Throws like complete_checkpoints.
[[nodiscard]] std::string newest_checkpoint(const std::string& folder);

/// Where step's checkpoint lies when it is complete.
[[nodiscard]] std::string checkpoint_path(const std::string& folder, std::int64_t step);

/// Makes an empty folder to write it in. Throws InputError.
[[nodiscard]] std::string begin_checkpoint(const std::string& folder, std::int64_t step);

/// Everything in `aside` is written and synced: marks it complete and puts it in its place, instead of what
/// may be there. Throws InputError.
std::string publish_checkpoint(const std::string& folder, const std::string& aside, std::int64_t step);

// What cannot be removed stays and is tried again the next time; a line for each says why.

/// Removes everything that is not complete. Only for who holds the run directory.
std::vector<std::string> sweep_checkpoints(const std::string& folder);
/// Removes the oldest beyond `keep`; 0 keeps all.
std::vector<std::string> remove_older_checkpoints(const std::string& folder, std::int64_t keep);
/// Both, when a run is over: there is no next time.
std::vector<std::string> tidy_checkpoints(const std::string& folder, std::int64_t keep);

}  // namespace stagecraft
