#pragma once

// How a wait that must poll passes its time: MPI makes progress only while it is called.

#include "engine/transport/mpi/futex_signals.h"

#include <chrono>
#include <cstdint>

namespace stagecraft::transport {

/// One wait: poll() before every test of what is waited for, and pause() after one in vain. Where ranks have
/// processors of their own it polls at once for some tens of microseconds, then gives the processor away
/// between polls. With signals, so where ranks outnumber processors, it soon sleeps, longer and longer up
/// to a millisecond, or until it is signalled.
class Polling {
 public:
  explicit Polling(const FutexSignals* signals) : signals_(signals) {}
  void poll() {
    if (signals_ != nullptr) heard_ = signals_->heard();
  }
  void pause();

 private:
  const FutexSignals* signals_;
  int turn_ = 0;
  std::uint32_t heard_ = 0;
  std::chrono::nanoseconds sleep_ = std::chrono::microseconds(20);
};

}  // namespace stagecraft::transport
