#pragma once

// SIGTERM and SIGUSR1 ask a run to save its state and stop. The handler sets a flag; ranks look at it where
// the run can stop (between steps, or at a drain point) and agree there.

namespace stagecraft {

/// While it lives, the two signals (and SIGINT, once) set the flag instead of ending the process. A second
/// SIGINT ends it: somebody at a terminal who insists. One at a time in a process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that came, 0 if none did.
  [[nodiscard]] static int received();
};

}  // namespace stagecraft
