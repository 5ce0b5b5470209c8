#pragma once

// Signs of life of a rank's thread, for another thread of its process. All bounds of waits are looked at by the
// rank's own thread; one that sits in a call that never returns, as a driver's may while its device waits for
// a rank that is gone, looks at none (engine/run/train/watchdog.h).
//
// Threads: one beats, any reads.

#include "schedules/program/action.h"

#include <atomic>
#include <cstdint>

namespace stagecraft {

class Pulse {
 public:
  void beat() { beats_.fetch_add(1, std::memory_order_relaxed); }
  /// The action that the thread begins; it outlives the run.
  void beat(const Action& action) {
    action_.store(&action, std::memory_order_relaxed);
    beat();
  }
  [[nodiscard]] std::uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }
  /// Null before the first.
  [[nodiscard]] const Action* action() const { return action_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> beats_ = 0;
  std::atomic<const Action*> action_ = nullptr;
};

}  // namespace stagecraft
