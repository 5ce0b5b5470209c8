#pragma once

// Ends a run whose host is stuck: no call of the rank's thread says so, since it never returns.

#include "base/ids.h"
#include "engine/transport/pulse.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace stagecraft {

class Watchdog {
 public:
  /// `tell` is called once, on a thread of this object's, when `pulse` has not beaten for `bound` while it is
  /// on; with what the thread was at. Time counts while the process runs. Where no thread is to be had nothing
  /// is watched. `pulse` outlives it.
  Watchdog(const Pulse& pulse, Seconds bound, std::function<void(const std::string& what)> tell);
  /// Waits for a call of `tell` that has begun.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From now on the pulse must beat, or need not.
  void turn(bool on);

 private:
  void watch(const Pulse& pulse, Seconds bound, const std::function<void(const std::string& what)>& tell);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool on_ = false;
  bool over_ = false;
  std::thread thread_;
};

/// `watchdog` is on while it lives; null: nothing.
class Watched {
 public:
  explicit Watched(Watchdog* watchdog) : watchdog_(watchdog) {
    if (watchdog_ != nullptr) watchdog_->turn(true);
  }
  ~Watched() {
    if (watchdog_ != nullptr) watchdog_->turn(false);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  Watchdog* watchdog_;
};

}  // namespace stagecraft
