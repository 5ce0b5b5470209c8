#include "engine/run/train/watchdog.h"

#include "base/stopwatch.h"

#include <fmt/format.h>

#include <chrono>
#include <system_error>
#include <utility>

namespace stagecraft {

Watchdog::Watchdog(const Pulse& pulse, Seconds bound, std::function<void(const std::string& what)> tell) {
  try {
    thread_ = std::thread([this, &pulse, bound, tell = std::move(tell)] { watch(pulse, bound, tell); });
  } catch (const std::system_error&) {  // pids.max: nothing is watched
  }
}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::turn(bool on) {
  {
    const std::scoped_lock lock(mutex_);
    on_ = on;
  }
  changed_.notify_all();
}

void Watchdog::watch(const Pulse& pulse, Seconds bound,
                     const std::function<void(const std::string& what)>& tell) {
  constexpr std::chrono::milliseconds kPiece{200};
  std::unique_lock lock(mutex_);
  Stopwatch since;
  std::uint64_t seen = pulse.beats();
  while (!over_) {
    changed_.wait_for(lock, kPiece);
    if (!on_ || pulse.beats() != seen) {
      seen = pulse.beats();
      since = Stopwatch();
    } else if (since.read() > bound) {
      break;
    }
  }
  if (over_) return;
  lock.unlock();
  const Action* const action = pulse.action();
  tell(fmt::format(
      "the host has been in one call for more than {:.1f} s, {}", bound.value,
      action == nullptr ? "before its first action" : fmt::format("in the {}", describe_action(*action))));
}

}  // namespace stagecraft
