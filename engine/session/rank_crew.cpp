#include "engine/session/rank_crew.h"

#include <algorithm>
#include <utility>

namespace stagecraft {

bool CrewTask::over() const {
  const std::scoped_lock lock(mutex_);
  return busy_ == 0;
}

bool CrewTask::failed() const {
  const std::scoped_lock lock(mutex_);
  return error_ != nullptr;
}

void CrewTask::wait(const std::function<void()>& meanwhile) const {
  constexpr std::chrono::milliseconds kLook{50};
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kLook, [&] { return busy_ == 0; })) {
    lock.unlock();
    meanwhile();
    lock.lock();
  }
  if (error_) std::rethrow_exception(error_);
}

Seconds CrewTask::took() const {
  const std::scoped_lock lock(mutex_);
  return Seconds{std::chrono::duration<double>(end_ - begin_).count()};
}

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
    begun_.wait(lock, [&] { return over_ || gone_ + tasks_.size() > made; });
    if (gone_ + tasks_.size() == made) return;
    const std::shared_ptr<CrewTask> task = tasks_[made - gone_];
    if (!error_ || made < failed_at_) {  // what was begun before the task that failed is still to be done
      lock.unlock();
      std::exception_ptr error;
      try {
        task->work_(place);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) {
        // Before the others hear of it: what they throw then comes second.
        failed_at_ = error_ ? std::min(failed_at_, made) : made;
        if (!error_) error_ = error;
        lock.unlock();
        failed_(place, task->doing_, error);
        lock.lock();
        const std::scoped_lock its(task->mutex_);
        task->error_ = error_;
      }
    } else {
      const std::scoped_lock its(task->mutex_);
      task->error_ = error_;
    }
    through(*task);
  }
}

void RankCrew::through(CrewTask& task) {
  const std::scoped_lock its(task.mutex_);
  if (--task.busy_ > 0) return;
  task.begin_ = std::max(task.begin_, last_end_);
  task.end_ = last_end_ = CrewTask::Clock::now();
  task.work_ = nullptr;
  tasks_.pop_front();
  ++gone_;
  task.ended_.notify_all();
}

std::shared_ptr<CrewTask> RankCrew::begin(std::string doing, Task task) {
  auto made = std::make_shared<CrewTask>();
  made->doing_ = std::move(doing);
  made->work_ = std::move(task);
  made->busy_ = threads_.size();
  made->begin_ = CrewTask::Clock::now();
  {
    const std::scoped_lock lock(mutex_);
    if (tasks_.empty()) error_ = nullptr;
    tasks_.push_back(made);
  }
  begun_.notify_all();
  return made;
}

void RankCrew::run(std::string doing, Task task, const std::function<void()>& meanwhile) {
  begin(std::move(doing), std::move(task))->wait(meanwhile);
}

}  // namespace stagecraft
