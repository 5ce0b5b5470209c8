#pragma once

// One rank's whole run: start from weights or a checkpoint, walk the segments, save, stop when asked, and at
// the end put together what all ranks saw.

#include "engine/records/metrics/run_summary.h"
#include "engine/run/resolve/setup.h"
#include "engine/run/save/run_dir.h"
#include "engine/run/show/reporter.h"
#include "engine/transport/transport.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

namespace stagecraft {

struct TrainOutcome {
  int stopped_by = 0;           ///< the signal, 0: the run is done
  std::int64_t steps = 0;       ///< made, in all
  std::string last_checkpoint;  ///< folder
  RunSummary summary;           ///< as in summary.json; on the reporting rank only
  /// The run goes on from last_checkpoint with this one (replan.when); the same on all ranks.
  std::optional<Plan> next_plan{};
};

/// What the rank is doing, for exit.json: "step 12", "checkpoint after step 100".
struct RankPhase {
  std::string what = "start-up";
  /// Called with the error of a rank that fails, before others that heard of it end: the first one speaks.
  std::function<void(const std::exception_ptr&)> failed = [](const std::exception_ptr&) {};
  std::string unfinished = {};  ///< a folder of the run that is being written: of no use after a failure
};

/// Tells the other ranks, and whoever else must know, that this rank fails at what it is `doing`.
using TellFailure = std::function<void(const std::string& doing, const std::exception_ptr& error)>;

/// "stopped by TERM after step 12; runs/x/checkpoints/step-00000012 has everything, go on with --resume"; ""
/// for a run that was not stopped.
[[nodiscard]] std::string stopped_text(const TrainOutcome& outcome);

/// Collective: all ranks of the setup's world call it, each on its own thread or process, while StopSignals
/// lives. `transport` carries tensors of `device`. A run that is stopped leaves exit.json. Throws what the
/// layers below throw, LibTorch's errors in one line, their stack in the rank's log. `tell` is called with it
/// first, while all of the rank still stands: a disk that hangs would keep the rank from closing its files, and
/// the others from hearing. It is also called, on another thread, for a start or a save that takes more than twice
/// its timeout (comms.start_up_timeout_s, comms.save_timeout_s); it may end the process.
///
/// A run that ends by an error in a step or a validation first saves the state of the last whole step, where
/// all ranks have one of the same step and it is finite; what the error says then names the checkpoint.
[[nodiscard]] TrainOutcome train_rank(const RunSetup& setup, const RunPaths& paths, Transport& transport,
                                      at::Device device, const Screen& screen, RankPhase& doing,
                                      const TellFailure& tell);

}  // namespace stagecraft
