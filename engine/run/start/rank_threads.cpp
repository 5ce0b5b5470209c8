#include "engine/run/start/rank_threads.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace stagecraft {

struct RankThreads::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t running = 0;
  bool hurried = false;
};

RankThreads::RankThreads(Make make) : make_(std::move(make)), state_(std::make_shared<State>()) {}

RankThreads::~RankThreads() {
  for (std::thread& thread : threads_) thread.detach();  // those that wait() gave up
}

void RankThreads::start(Body body) {
  threads_.reserve(threads_.size() + 1);
  {
    const std::scoped_lock lock(state_->mutex);
    ++state_->running;
  }
  const auto ended = [](State& state) {
    const std::scoped_lock lock(state.mutex);
    --state.running;
    state.changed.notify_all();
  };
  try {
    threads_.push_back(make_([state = state_, ended, body = std::move(body)] {
      body();
      ended(*state);
    }));
  } catch (...) {
    ended(*state_);
    throw;
  }
}

void RankThreads::hurry() {
  const std::scoped_lock lock(state_->mutex);
  state_->hurried = true;
  state_->changed.notify_all();
}

bool RankThreads::wait(Seconds grace) {
  {
    std::unique_lock lock(state_->mutex);
    const auto ended = [&] { return state_->running == 0; };
    state_->changed.wait(lock, [&] { return ended() || state_->hurried; });
    if (!state_->changed.wait_for(lock, std::chrono::duration<double>(grace.value), ended)) return false;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  return true;
}

}  // namespace stagecraft
