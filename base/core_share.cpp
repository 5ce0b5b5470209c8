#include "base/core_share.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <unistd.h>

namespace stagecraft {
namespace {

/// That a thread of this process could have run and had no core; infinite where the kernel does not say.
Seconds waited_for_core(pid_t thread) {
  double ran = 0, waited = 0;  // nanoseconds
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/schedstat");
  if (!(file >> ran >> waited)) return Seconds{std::numeric_limits<double>::infinity()};
  return Seconds{waited * 1e-9};
}

}  // namespace

void CoreShare::take_note_of_thread() {
  thread_ = gettid();
  const Seconds waited = waited_for_core(thread_);
  if (waited < Seconds{std::numeric_limits<double>::infinity()}) waited_before_ = waited;
}

std::optional<double> CoreShare::share() const {
  if (thread_ == 0) return std::nullopt;
  // What it waited for a core may have been between its work, and what it did not run in its work may have been sleep.
  const Seconds waited = std::min(clock_ - processor_, waited_for_core(thread_) - waited_before_);
  const Seconds wanted = processor_ + std::max(waited, Seconds{});
  return wanted < enough_ ? std::nullopt : std::optional(processor_ / wanted);
}

}  // namespace stagecraft
