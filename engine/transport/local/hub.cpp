#include "engine/transport/local/hub.h"

#include "base/error.h"
#include "engine/transport/cores.h"
#include "engine/transport/spin.h"
#include "engine/transport/wait_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace stagecraft::transport {
namespace {

std::string name(const LocalHalf& half) { return name_transfer(half.send, half.tag, half.peer); }

}  // namespace

std::size_t LocalHub::KeyHash::operator()(const Key& key) const noexcept {
  const auto ranks = static_cast<std::size_t>(key.from.value) * 4099 + static_cast<std::size_t>(key.to.value);
  return std::hash<Tag>{}(key.tag) ^ (ranks * 0x9E3779B97F4A7C15ULL);
}

LocalHub::LocalHub(int world, const TransportOptions& options)
    : world_(world),
      options_(options),
      spin_(world <= count_cores().usable),
      woken_(static_cast<std::size_t>(world)),
      finished_(static_cast<std::size_t>(world), 0),
      round_(std::make_shared<Round>()),
      agreed_(static_cast<std::size_t>(world)) {
  round_->brought.resize(static_cast<std::size_t>(world));
}

void LocalHub::begin(const std::shared_ptr<LocalHalf>& half) {
  const Key key =
      half->send ? Key{half->self, half->peer, half->tag} : Key{half->peer, half->self, half->tag};
  std::shared_ptr<LocalHalf> other;
  {
    const std::lock_guard lock(mutex_);
    throw_if_failed(half->self, name(*half));
    const auto [entry, fresh] = waiting_.try_emplace(key);
    Waiting& waiting = entry->second;
    if (fresh || waiting.first->send == half->send) {
      (fresh ? waiting.first : waiting.last->next) = half;
      waiting.last = half.get();
      return;
    }
    other = std::move(waiting.first);
    waiting.first = std::move(other->next);
    if (waiting.first == nullptr)
      waiting_.erase(entry);  // segments bring ever new tags: the table must not grow
  }
  const at::Tensor& source = half->send ? half->tensor : other->tensor;
  const at::Tensor& target = half->send ? other->tensor : half->tensor;
  STAGECRAFT_CHECK(source.nbytes() == target.nbytes(),
                   fmt::format("{} has {} bytes, its receive {}", name(half->send ? *half : *other),
                               source.nbytes(), target.nbytes()));
  std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
  // The other rank may give its memory back as soon as it is told: nothing here may keep it.
  half->tensor = at::Tensor();
  other->tensor = at::Tensor();
  half->done.store(true, std::memory_order_release);
  finish(*other);
}

void LocalHub::finish(LocalHalf& half) {
  half.done.store(true, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);  // the other rank is either asleep or has not looked yet
    ++finished_[half.self.index()];
  }
  woken_[half.self.index()].notify_all();
}

template <class Done>
bool LocalHub::spin(const Done& done, const std::function<void()>& background) const {
  if (done()) return true;
  return spin_ && transport::spin(done, background);
}

void LocalHub::wait(const LocalHalf& half, Waits& waits, const std::function<void()>& background) {
  const auto done = [&] { return half.done.load(std::memory_order_acquire); };
  if (spin(done, background)) return;
  Wait wait(waits, half.begun);
  const std::size_t me = half.self.index();
  std::optional<std::uint64_t> seen;  // of finished_, by the background work
  std::unique_lock lock(mutex_);
  while (!done()) {
    throw_if_failed(half.self, name(half));
    if (background && seen != finished_[me]) {
      seen = finished_[me];
      lock.unlock();
      background();
      lock.lock();
      continue;
    }
    const bool woken = woken_[me].wait_for(lock, kSlice) == std::cv_status::no_timeout;
    if (!woken && !done()) wait.check([&] { return name(half); });
  }
}

std::vector<LocalHub::Text> LocalHub::exchange(Rank rank, Waits& waits, const std::string& what,
                                               std::string mine, const std::function<void()>& background) {
  Wait wait(waits);
  std::unique_lock lock(mutex_);
  throw_if_failed(rank, what);
  const std::shared_ptr<Round> round = round_;
  if (round->arrived == 0) round->what = what;
  STAGECRAFT_CHECK(round->what == what, fmt::format("rank {} came to a {} where another rank is in a {}",
                                                    rank.value, what, round->what));
  // All that takes memory first: the others go on as soon as all have arrived.
  std::shared_ptr<Round> next;
  if (round->arrived + 1 == world_) {
    next = std::make_shared<Round>();
    next->brought.resize(static_cast<std::size_t>(world_));
  }
  round->brought[rank.index()] = std::make_shared<const std::string>(std::move(mine));
  if (++round->arrived == world_) {
    round_ = std::move(next);
    for (auto& woken : woken_) woken.notify_all();
  }
  const auto all_here = [&] { return round->arrived.load(std::memory_order_acquire) == world_; };
  if (!all_here()) {
    lock.unlock();
    (void)spin(all_here, background);
    lock.lock();
  }
  while (round->arrived < world_) {
    throw_if_failed(rank, what);
    if (background) {
      lock.unlock();
      background();
      lock.lock();
      if (round->arrived == world_) break;
    }
    const auto slice = background ? kPollingSlice : kSlice;
    const bool woken = woken_[rank.index()].wait_for(lock, slice) == std::cv_status::no_timeout;
    if (!woken && round->arrived < world_) wait.check([&] { return what; });
  }
  return round->brought;
}

void LocalHub::begin_agreement(Rank rank, int mine) {
  const std::lock_guard lock(mutex_);
  const std::size_t number = agreed_[rank.index()].begun - all_heard_;
  if (number >= agreements_.size()) agreements_.emplace_back();
  ++agreed_[rank.index()].begun;
  Agreement& agreement = agreements_[number];
  agreement.most = std::max(agreement.most, mine);
  if (++agreement.arrived < world_) return;
  for (auto& woken : woken_) woken.notify_all();
}

int LocalHub::finish_agreement(Rank rank, Waits& waits, const std::function<void()>& background) {
  const auto what = [] { return std::string("an agreement of all ranks"); };
  Wait wait(waits);
  std::unique_lock lock(mutex_);
  const std::size_t number = agreed_[rank.index()].heard;
  STAGECRAFT_CHECK(number < agreed_[rank.index()].begun, "an agreement is begun before it is finished");
  const auto there = [&]() -> Agreement& { return agreements_[number - all_heard_]; };
  if (Agreement& agreement = there(); agreement.arrived < world_) {
    // It stays where it is until this rank has read it.
    lock.unlock();
    (void)spin([&] { return agreement.arrived.load(std::memory_order_acquire) == world_; }, background);
    lock.lock();
  }
  while (there().arrived < world_) {
    throw_if_failed(rank, what());
    if (background) {
      lock.unlock();
      background();
      lock.lock();
    }
    if (there().arrived == world_) break;
    const bool woken = woken_[rank.index()].wait_for(lock, kSlice) == std::cv_status::no_timeout;
    if (!woken && there().arrived < world_) wait.check(what);
  }
  ++agreed_[rank.index()].heard;
  const int most = there().most;
  ++there().read;
  for (; !agreements_.empty() && agreements_.front().read == world_; ++all_heard_) agreements_.pop_front();
  return most;
}

void LocalHub::throw_if_failed(Rank rank, const std::string& what) const {
  if (!failure_) return;
  const std::string text = gave_up(rank, what, failure_->rank, failure_->reason);
  if (failure_->meets) throw MeetAgainError(text);
  throw PeerError(text);
}

void LocalHub::listen(Rank rank) const {
  if (!failed_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  throw_if_failed(rank, "its work");
}

std::shared_ptr<LocalHub> LocalHub::second(const TransportOptions& options) {
  const std::lock_guard lock(mutex_);
  if (second_ == nullptr) second_ = std::make_shared<LocalHub>(world_, options);
  return second_;
}

void LocalHub::fail(Rank rank, const std::string& reason, bool meets) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = Failure{rank, reason, meets};  // what comes later follows from the first
    failed_ = true;
  } catch (...) {
    // Out of memory for the reason: the others run into their timeouts.
  }
  for (auto& woken : woken_) woken.notify_all();
}

}  // namespace stagecraft::transport
