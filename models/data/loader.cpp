#include "models/data/loader.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

namespace stagecraft {

SampleOrder order_of(const Dataset& data, const LoaderOptions& options) {
  return {data, options.split, {options.seed, options.shuffle, options.batch}};
}

struct Loader::Impl {
  enum class State : std::uint8_t { pending, reading, ready };
  struct Entry {
    State state = State::pending;
    Batch batch;
    std::exception_ptr error;
  };
  struct InOrder {
    bool operator()(const MicroBatchRange& a, const MicroBatchRange& b) const {
      return std::tie(a.epoch, a.first, a.count) < std::tie(b.epoch, b.first, b.count);
    }
  };

  const Dataset& data;
  const LoaderOptions options;
  const SampleOrder order;

  std::mutex mutex;
  std::condition_variable changed;  // one condition for both sides: there are two threads, no herd
  using Entries = std::map<MicroBatchRange, Entry, InOrder>;
  Entries entries;                      // announced and not taken
  std::deque<MicroBatchRange> unread;   // the reading thread's work; some may be taken already
  std::deque<Entries::iterator> ready;  // in the order they were read, which is that of announcements
  bool stopping = false;

  /// Seconds. A read that takes long for once, because its thread had to wait for a processor, at most
  /// doubles it.
  double read_time = std::numeric_limits<double>::infinity();

  double waited = 0;   // only the taking thread touches it
  std::thread thread;  // last: it uses all of the above

  Impl(const Dataset& dataset, LoaderOptions chosen)
      : data(dataset), options(std::move(chosen)), order(order_of(data, options)) {
    STAGECRAFT_CHECK(options.depth >= 1, fmt::format("a loader of depth {}", options.depth));
    thread = std::thread([this] { read_ahead(); });
  }

  [[nodiscard]] bool taker_reads() const {
    constexpr double kWaking =
        20e-6;  // of a thread: a call of the kernel on each side, and the change between them
    return options.short_reads_in_take && read_time < kWaking;
  }

  void note_read_time(std::chrono::steady_clock::time_point begin) {
    const double time = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    read_time = std::min(time, 2 * read_time);
  }

  /// Where somebody else is to read: the taking thread does not wake for nothing.
  void wake_reader() {
    if (!taker_reads()) changed.notify_all();
  }

  [[nodiscard]] Batch read(const MicroBatchRange& range) const {
    const std::vector<std::int64_t> indices = order.samples(range);
    Batch batch;
    batch.samples = range.count;
    if (options.inputs) batch.inputs = data.inputs(options.split, indices);
    if (options.targets) batch.targets = data.targets(options.split, indices);
    batch.fields = read_fields(data, options.split, options.fields, indices);
    return batch;
  }

  /// The next entry nobody has begun, or the end.
  auto next_pending() {
    for (; !unread.empty(); unread.pop_front()) {
      const auto entry = entries.find(unread.front());
      if (entry != entries.end() && entry->second.state == State::pending) return entry;
    }
    return entries.end();
  }

  void read_ahead() {
    std::unique_lock lock(mutex);
    while (true) {
      auto entry = entries.end();
      changed.wait(lock, [&] {
        return stopping || (!taker_reads() && ready.size() < static_cast<std::size_t>(options.depth) &&
                            (entry = next_pending()) != entries.end());
      });
      if (stopping) return;
      entry->second.state = State::reading;  // until it is ready nobody erases it

      lock.unlock();
      Batch batch;
      std::exception_ptr error;
      const auto begin = std::chrono::steady_clock::now();
      try {
        batch = read(entry->first);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      note_read_time(begin);

      entry->second.batch = std::move(batch);
      entry->second.error = error;
      entry->second.state = State::ready;
      ready.push_back(entry);
      changed.notify_all();
    }
  }
};

Loader::Loader(const Dataset& data, LoaderOptions options)
    : impl_(std::make_unique<Impl>(data, std::move(options))) {}

Loader::~Loader() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->changed.notify_all();
  impl_->thread.join();
}

void Loader::announce(const std::vector<MicroBatchRange>& ranges) {
  {
    const std::lock_guard lock(impl_->mutex);
    for (const MicroBatchRange& range : ranges) {
      if (impl_->entries.try_emplace(range).second) impl_->unread.push_back(range);
    }
    impl_->wake_reader();
  }
}

Batch Loader::take(const MicroBatchRange& range) {
  using State = Impl::State;
  const auto begin = std::chrono::steady_clock::now();
  Batch batch;
  std::exception_ptr error;
  {
    std::unique_lock lock(impl_->mutex);
    const auto entry = impl_->entries.find(range);
    STAGECRAFT_CHECK(entry != impl_->entries.end(),
                     fmt::format("samples [{}, {}) of epoch {} were not announced, or taken before",
                                 range.first, range.first + range.count, range.epoch));
    if (entry->second.state == State::pending) {
      impl_->entries.erase(entry);
      (void)
          impl_->next_pending();  // forgets what is read here: the reading thread may sleep for the whole run
      lock.unlock();
      batch = impl_->read(range);
      lock.lock();
      impl_->note_read_time(begin);
      impl_->wake_reader();
    } else {
      impl_->changed.wait(lock, [&] { return entry->second.state == State::ready; });
      batch = std::move(entry->second.batch);
      error = entry->second.error;
      std::erase(impl_->ready, entry);
      impl_->entries.erase(entry);
      impl_->wake_reader();
    }
  }
  impl_->waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (error) std::rethrow_exception(error);
  return batch;
}

void Loader::await_ready() {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [&] { return !impl_->ready.empty() || impl_->entries.empty(); });
}

std::optional<Loader::Ready> Loader::take_ready() {
  std::optional<Ready> taken;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->ready.empty() || impl_->ready.front()->second.error) return std::nullopt;
    const auto entry = impl_->ready.front();
    taken = {entry->first, std::move(entry->second.batch)};
    impl_->ready.pop_front();
    impl_->entries.erase(entry);
  }
  impl_->changed.notify_all();
  return taken;
}

Seconds Loader::waited() const { return Seconds{impl_->waited}; }

}  // namespace stagecraft
