#pragma once

// The threads of this process's ranks, which wait for something to do. A task is carried out by all of them, each behind
// the tasks that it got before; who hands it over need not wait.

#include "base/ids.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace stagecraft {

/// A task that was handed over. Lives as long as somebody asks for it; any thread may.
class CrewTask {
 public:
  [[nodiscard]] bool over() const;
  [[nodiscard]] bool failed() const;  ///< of one that is over
  /// Returns when every thread is through it, or rethrows the first error of those that were under way together. One
  /// that was handed over behind a failed one, and before anybody could know, is left out and has its error.
  /// `meanwhile` is called on the calling thread about every 50 ms; it may not throw.
  void wait(const std::function<void()>& meanwhile) const;
  /// Until all were through it, from when it was handed over or the one before it was over. Of one that is over.
  [[nodiscard]] Seconds took() const;

 private:
  friend class RankCrew;
  using Clock = std::chrono::steady_clock;

  std::function<void(std::size_t place)> work_;  ///< until it is over
  std::string doing_;
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::size_t busy_ = 0;  ///< ranks that are not through it
  std::exception_ptr error_;
  Clock::time_point begin_, end_;
};

class RankCrew {
 public:
  /// Of the rank at `place` among this process's.
  using Task = std::function<void(std::size_t place)>;
  /// Called on the thread of a rank whose task throws. `doing`: the task in words.
  using Failed =
      std::function<void(std::size_t place, const std::string& doing, const std::exception_ptr& error)>;

  /// Throws std::system_error where no thread is to be had.
  RankCrew(std::size_t ranks, Failed failed);
  /// Waits for what is under way.
  ~RankCrew();
  RankCrew(const RankCrew&) = delete;
  RankCrew& operator=(const RankCrew&) = delete;

  /// Hands a task over. One at a time calls it.
  [[nodiscard]] std::shared_ptr<CrewTask> begin(std::string doing, Task task);
  /// The same, and waits for it.
  void run(std::string doing, Task task, const std::function<void()>& meanwhile);

 private:
  void work(std::size_t place);
  void end();
  /// A rank is through `task`. Under the mutex.
  void through(CrewTask& task);

  Failed failed_;
  std::mutex mutex_;
  std::condition_variable begun_;
  std::deque<std::shared_ptr<CrewTask>> tasks_;  ///< that are not over
  std::uint64_t gone_ = 0;                       ///< that are
  std::exception_ptr error_;                     ///< the first of those that are under way together
  std::uint64_t failed_at_ = 0;                  ///< with an error: tasks from this number on are left out
  CrewTask::Clock::time_point last_end_;
  bool over_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace stagecraft
