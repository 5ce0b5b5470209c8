#pragma once

// A training run from the command's point of view: config in, run directory out. Alone, its ranks are
// threads; under mpirun, srun or torchrun they are processes. Whoever calls it only prints and chooses exit codes.

#include "base/json.h"
#include "engine/run/show/reporter.h"
#include "engine/run/train/trainer.h"

#include <functional>
#include <string>
#include <vector>

namespace stagecraft {

struct TrainRequest {
  std::string config;                  ///< path of run.json
  std::vector<std::string> overrides;  ///< "a.b=v"
  std::string plan;                    ///< path; "": the config's, or one that is made now
  /// Of torch.distributed's that has all processes of torchrun: how they talk. Without one they are refused.
  std::string process_group;
  bool resume = false;
  std::vector<std::string>
      allowed_changes;        ///< of a resume: keys below which the config may differ (resume_check.h)
  bool dry_run = false;       ///< stop when everything is proved and shown
  bool print_config = false;  ///< give back the effective config and stop
};

struct TrainResult {
  bool is_reporter = true;  ///< this process shows the result; the others of the run stay silent
  bool trained = false;     ///< false: a dry run, or the run was over
  bool over = false;        ///< a resume of a run that had made all its steps: nothing was done
  std::string run_dir;
  Json effective_config;  ///< on a speaking process
  TrainOutcome outcome;
};

/// What the caller does with text and errors. Nothing of it waits for a reader: ranks wait for the one that
/// prints.
struct TrainOutput {
  Print print;  ///< start-up tables and step lines; empty: none (--json)
  Print note;   ///< remarks
  /// Prints the exception in flight, for a process that ends without returning.
  std::function<void()> report_exception = [] {};
  Print draw{};                         ///< the progress bar; empty: none
  std::function<void()> flush = [] {};  ///< gives what was printed some time to be read
};

/// Throws what failed first, after all ranks of this process have ended. The process ends from here, after
/// its message and with the exit code of base/failure.h:
///   - under a launcher, by a failure (MPI_Abort or torchrun ends the whole job); only failures before any rank could
///     wait for another are thrown;
///   - alone, by a failure after which a rank's thread does not end within seconds;
///   - by a signal before the first step: 75.
[[nodiscard]] TrainResult train(const TrainRequest& request, const TrainOutput& output);

}  // namespace stagecraft
