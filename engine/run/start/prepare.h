#pragma once

// What rank 0 does before the others start: read, lock, plan, prove. The rest of the ranks get its results as
// text and build the same setup from that.

#include "engine/run/resolve/resolve.h"
#include "engine/run/resolve/setup.h"
#include "engine/run/save/run_dir.h"
#include "engine/run/start/train.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

struct Prepared {
  std::unique_ptr<RunDirectory> directory;  ///< rank 0's; null in a dry run
  std::unique_ptr<RunSetup> setup;
  std::optional<Profile> profile;  ///< that its plan was made from now
  std::vector<std::string> notes;  ///< for people
};

/// `launched`: absent: ranks are threads, as many as the plan wants. The run uses as many of them as it may. `locked` is called as soon as the run
/// directory is this run's. `draw`: where people see that layers are being measured (progress.h); may be empty.
[[nodiscard]] Prepared prepare(const TrainRequest& request, RunConfig config,
                               const std::optional<World>& launched,
                               const std::function<void(const RunPaths&)>& locked, Print draw = {});

/// The same run again, from its newest checkpoint and with another plan, in the directory that `before` holds. Its old
/// setup goes first: there may be no memory for two.
[[nodiscard]] Prepared prepare_again(const TrainRequest& request, RunConfig config,
                                     const std::optional<World>& launched, Prepared before, Plan plan);

/// Puts the run's own files (config.json, plan.json, profile.json, folders) into the directory, cuts metrics back to the
/// start and removes what a killed session left half-written. Returns remarks for people.
std::vector<std::string> write_run_files(const RunPaths& paths, const RunSetup& setup,
                                         const std::optional<Profile>& profile = std::nullopt);

/// What rank 0 knows, for the others, as bytes; and back.
[[nodiscard]] std::string setup_text(const RunSetup& setup, const std::string& file, const RunPaths& paths);
[[nodiscard]] RunPaths paths_from_text(const std::string& text);
/// That hold stages, the first ones; the other processes are spares.
[[nodiscard]] int ranks_from_text(const std::string& text);
/// On `rank`, which opens the data only where its stages read it.
[[nodiscard]] std::unique_ptr<RunSetup> setup_from_text(const std::string& text, Rank rank);

}  // namespace stagecraft
