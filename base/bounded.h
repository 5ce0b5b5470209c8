#pragma once

// Work that may hang because a disk or a device does, in a process that must not: it runs on a thread of its own, which is
// left behind when patience is over.

#include "base/ids.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace stagecraft {

/// Runs `work` and waits `patience` at most. Returns whether it was done by then; what it throws is dropped.
/// `work` owns what it uses: it may still run when this has returned. Where no thread is to be had it runs here.
[[nodiscard]] bool done_within(Seconds patience, const std::function<void()>& work) noexcept;

/// Calls `overdue`, on a thread of its own and once, if it lives longer than `limit`. Time counts while the
/// process runs, as for Stopwatch. Where no thread is to be had it watches nothing.
class Overdue {
 public:
  Overdue(Seconds limit, std::function<void()> overdue);
  /// Waits for a call of `overdue` that has begun.
  ~Overdue();
  Overdue(const Overdue&) = delete;
  Overdue& operator=(const Overdue&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace stagecraft
