#pragma once

// Whether a run may go on from a checkpoint: the config that decides its numbers must be the one that it had, but for
// what the user allows to change.

#include "engine/records/metrics/manifest.h"
#include "engine/run/resolve/setup.h"

#include <string>
#include <vector>

namespace stagecraft {

/// Keys of `--allow`: "optimizer.params.lr", as --set spells them. Throws InputError for one that no resume can change,
/// with the nearest that it can.
void check_allowed(const std::vector<std::string>& keys);

/// Throws InputError, naming what differs and how it can be allowed, where a run of `config` cannot go on from this
/// state. `allowed`: keys below which values may differ, each of which the config or the state must have. Returns what does, with the manifest's step.
[[nodiscard]] std::vector<ResumeChange> check_resume(const Manifest& manifest, const std::string& checkpoint,
                                                     const RunConfig& config, const TrainingInputs& inputs,
                                                     const Plan& plan,
                                                     const std::vector<std::string>& allowed = {});

/// "optimizer.params.lr is 0.001 from step 40 on, it was 0.003".
[[nodiscard]] std::string change_text(const ResumeChange& change);

}  // namespace stagecraft
