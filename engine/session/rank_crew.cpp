#include "engine/session/rank_crew.h"

#include <chrono>
#include <utility>

namespace stagecraft {

RankCrew::RankCrew(std::size_t ranks, Failed failed) : failed_(std::move(failed)) {
  try {
    for (std::size_t place = 0; place < ranks; ++place) threads_.emplace_back([this, place] { work(place); });
  } catch (...) {
    end();
    throw;
  }
}

RankCrew::~RankCrew() { end(); }

void RankCrew::end() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void RankCrew::work(std::size_t place) {
  std::unique_lock lock(mutex_);
  for (std::uint64_t made = 0;; ++made) {
    begun_.wait(lock, [&] { return over_ || round_ > made; });
    if (round_ == made) return;
    const Task& task = *task_;
    lock.unlock();
    std::exception_ptr error;
    try {
      task(place);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;  // before the others hear of it: what they throw then comes second
    if (error) {
      lock.unlock();
      failed_(place, error);
      lock.lock();
    }
    if (--busy_ == 0) ended_.notify_all();
  }
}

void RankCrew::run(const Task& task, const std::function<void()>& meanwhile) {
  constexpr std::chrono::milliseconds kLook{50};
  std::unique_lock lock(mutex_);
  task_ = &task;
  busy_ = threads_.size();
  error_ = nullptr;
  ++round_;
  begun_.notify_all();
  const auto through = [&] { return busy_ == 0; };
  while (!ended_.wait_for(lock, kLook, through)) {
    lock.unlock();
    meanwhile();
    lock.lock();
  }
  task_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace stagecraft
