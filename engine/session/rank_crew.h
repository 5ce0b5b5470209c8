#pragma once

// The threads of this process's ranks, which wait for something to do: one task at a time, that all of them carry out
// together.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace stagecraft {

class RankCrew {
 public:
  /// Of the rank at `place` among this process's.
  using Task = std::function<void(std::size_t place)>;
  /// Called on the thread of a rank whose task throws.
  using Failed = std::function<void(std::size_t place, const std::exception_ptr& error)>;

  /// Throws std::system_error where no thread is to be had.
  RankCrew(std::size_t ranks, Failed failed);
  /// Waits for what is under way.
  ~RankCrew();
  RankCrew(const RankCrew&) = delete;
  RankCrew& operator=(const RankCrew&) = delete;

  /// Returns when every thread is through `task`, or rethrows the first error. `meanwhile` is called on the calling
  /// thread about every 50 ms; it may not throw.
  void run(const Task& task, const std::function<void()>& meanwhile);

 private:
  void work(std::size_t place);
  void end();

  Failed failed_;
  std::mutex mutex_;
  std::condition_variable begun_, ended_;
  const Task* task_ = nullptr;
  std::uint64_t round_ = 0;  ///< tasks begun
  std::size_t busy_ = 0;     ///< ranks that are not through the present one
  bool over_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace stagecraft
