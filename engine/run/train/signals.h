#pragma once

// SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP, SIGXCPU and SIGPWR ask a run to save its state and stop. The handler
// sets a flag; ranks look at it where the run can stop (between steps, at a drain point, between a validation's
// micro-batches) and agree there.

#include "base/ids.h"

#include <functional>
#include <thread>

namespace stagecraft {

/// While it lives, the signals set the flag instead of ending the process. A second SIGINT ends it: somebody
/// at a terminal who insists. A SIGHUP that is ignored (nohup) stays ignored. One at a time in a process.
class StopSignals {
 public:
  /// `at_start` is called, on a thread of its own, for a signal that comes before training_begins(). There is
  /// nothing to save yet, and preparing may take minutes: it ends the process.
  explicit StopSignals(std::function<void(int signal)> at_start);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// From here on signals are only remembered. Any thread may say so, any number of times. Does not return behind a call
  /// of `at_start`.
  static void training_begins();
  /// How long ago the first SIGTERM came: launchers and queues send it, and kill what still runs some 30 s later. 0: none
  /// came. For any thread.
  [[nodiscard]] static Seconds since_term();
  /// The signal that came, 0 if none did.
  [[nodiscard]] static int received();

 private:
  std::thread watcher_;
};

}  // namespace stagecraft
