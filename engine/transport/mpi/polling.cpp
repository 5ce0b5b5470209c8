#include "engine/transport/mpi/polling.h"

#include <algorithm>
#include <sched.h>
#include <time.h>

namespace stagecraft::transport {

void Polling::pause() {
  constexpr int kEager = 100;
  constexpr int kYielding = 200;
  constexpr long kLongestSleepNs = 500'000;
  if (turn_ < kYielding) ++turn_;
  if (turn_ < kEager) return;
  if (!crowded_ || turn_ < kYielding) {
    sched_yield();
    return;
  }
  const timespec duration{0, sleep_ns_};
  nanosleep(&duration, nullptr);
  sleep_ns_ = std::min(2 * sleep_ns_, kLongestSleepNs);
}

}  // namespace stagecraft::transport
