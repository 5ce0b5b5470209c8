#include "profiler/device_stopwatch.h"

namespace stagecraft {

void DeviceStopwatch::settle() {
  if (pending_.empty()) return;
  pending_.back().end.synchronize();  // and so is everything before it
  constexpr double kMilliseconds = 1e-3;
  for (const Pending& pending : pending_) {
    pending.times->push_back(Seconds{pending.begin.elapsedTime(pending.end) * kMilliseconds});
  }
  pending_.clear();
}

}  // namespace stagecraft
