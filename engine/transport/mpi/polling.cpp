#include "engine/transport/mpi/polling.h"

#include <algorithm>
#include <sched.h>

namespace stagecraft::transport {

void Polling::pause() {
  constexpr int kEager = 100;
  constexpr int kEagerInACrowd = 10;  // a poll of many neighbours takes microseconds of somebody's time
  constexpr std::chrono::nanoseconds kLongestSleep = std::chrono::milliseconds(1);
  if (++turn_ < (signals_ == nullptr ? kEager : kEagerInACrowd)) return;
  if (signals_ == nullptr) {
    turn_ = kEager;
    sched_yield();
    return;
  }
  turn_ = kEagerInACrowd;
  signals_->listen(heard_, sleep_);
  sleep_ = std::min(2 * sleep_, kLongestSleep);
}

}  // namespace stagecraft::transport
