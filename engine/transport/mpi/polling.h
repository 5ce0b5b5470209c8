#pragma once

// How a wait that must poll passes its time: MPI makes progress only while it is called.

namespace stagecraft::transport {

/// One wait. Polls at once for some tens of microseconds; then gives the processor away between polls, and
/// where ranks outnumber processors sleeps, longer and longer up to half a millisecond.
class Polling {
 public:
  explicit Polling(bool crowded) : crowded_(crowded) {}
  void pause();

 private:
  bool crowded_;
  int turn_ = 0;
  long sleep_ns_ = 20'000;
};

}  // namespace stagecraft::transport
