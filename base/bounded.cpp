#include "base/bounded.h"

#include "base/stopwatch.h"

#include <chrono>
#include <future>
#include <system_error>
#include <utility>

namespace stagecraft {

bool done_within(Seconds patience, const std::function<void()>& work) noexcept {
  try {
    std::packaged_task<void()> task(work);
    std::future<void> done = task.get_future();
    try {
      std::thread(std::move(task)).detach();
    } catch (const std::system_error&) {
      work();
      return true;
    }
    return done.wait_for(std::chrono::duration<double>(patience.value)) == std::future_status::ready;
  } catch (...) {
    return false;
  }
}

Overdue::Overdue(Seconds limit, std::function<void()> overdue) {
  try {
    thread_ = std::thread([this, limit, overdue = std::move(overdue)] {
      constexpr std::chrono::milliseconds kPiece{200};
      Stopwatch watch;
      std::unique_lock lock(mutex_);
      while (!over_ && watch.read() < limit) changed_.wait_for(lock, kPiece);
      if (over_) return;
      lock.unlock();
      overdue();
    });
  } catch (const std::system_error&) {  // pids.max: the save is not watched
  }
}

Overdue::~Overdue() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace stagecraft
