#pragma once

// How a wait that must poll passes its time: MPI makes progress only while it is called.

#include "stagecraft/engine/transport/mpi/futex_signals.h"

#include <chrono>
#include <cstdint>

namespace stagecraft::transport {

/// One wait: before every look() at what is waited for, and pause() after one in vain. Where ranks have
/// processors of their own it polls at once for some tens of microseconds, then gives the processor away
/// between polls. With doorbells, so where ranks outnumber processors, it soon sleeps, longer and longer up
/// to a millisecond, or until it is rung for.
class Polling {
 public:
  explicit Polling(const FutexSignals* doorbells) : signals_(doorbells) {}
  void look() {
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
