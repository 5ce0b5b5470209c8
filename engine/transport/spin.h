#pragma once

// How a rank's thread passes the time of a wait for what another thread sets.

#include <chrono>
#include <functional>
#include <thread>

namespace stagecraft::transport {

/// Sleeping waits look at the time so often.
constexpr std::chrono::milliseconds kSlice(50);
/// Likewise for work that nobody wakes them for.
constexpr std::chrono::milliseconds kPollingSlice(1);

/// Its first moments. Looks until `done`, for about as long as it takes to fall asleep and wake up a few times; calls `background`, if
/// there is one, again and again meanwhile. Whether it is done. Only where there is a core for whoever is waited for.
template <class Done>
[[nodiscard]] bool spin(const Done& done, const std::function<void()>& background) {
  // To wake a thread takes some ten microseconds of both sides, and what is waited for is often nearer than
  // that.
  constexpr std::chrono::microseconds kLongest(200);
  const auto until = std::chrono::steady_clock::now() + kLongest;
  for (int turn = 1;; ++turn) {
    if (done()) return true;
    if (turn % 64 != 0) continue;
    if (background) background();
    std::this_thread::yield();  // to a thread that reads data, say
    if (std::chrono::steady_clock::now() > until) return done();
  }
}

}  // namespace stagecraft::transport
