#include "models/data/loader.h"

#include "schedules/base/error.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace stagecraft {

struct Loader::Impl {
  enum class State : std::uint8_t { unwanted, pending, reading, ready, taken };
  struct Entry {
    MicroBatchRange range;
    State state = State::unwanted;
    Batch batch;
    std::exception_ptr error;
  };

  const Dataset& data;
  const LoaderOptions options;

  std::mutex mutex;
  std::condition_variable changed;  // one condition for both sides: there are two threads, no herd
  std::vector<Entry> entries;       // of the segment, by micro-batch
  std::vector<MicroBatch> order;    // wanted ones
  std::size_t next = 0;             // in `order`: where the thread looks for work
  int waiting = 0;                  // entries that are ready
  std::uint64_t segment = 0;
  bool stopping = false;

  double waited = 0;   // only the taking thread touches it
  std::thread thread;  // last: it uses all of the above

  Impl(const Dataset& dataset, LoaderOptions chosen) : data(dataset), options(chosen) {
    STAGECRAFT_CHECK(options.depth >= 1, fmt::format("a loader of depth {}", options.depth));
    thread = std::thread([this] { read_ahead(); });
  }

  [[nodiscard]] Batch read(const MicroBatchRange& range) const {
    const Shuffle shuffle(data.size(options.split), options.seed, range.epoch, options.shuffle);
    std::vector<std::int64_t> indices(static_cast<std::size_t>(range.count));
    for (std::int64_t i = 0; i < range.count; ++i)
      indices[static_cast<std::size_t>(i)] = shuffle(range.first + i);
    Batch batch;
    batch.samples = range.count;
    if (options.inputs) batch.inputs = data.inputs(options.split, indices);
    if (options.targets) batch.targets = data.targets(options.split, indices);
    return batch;
  }

  /// The next entry nobody has begun, or null.
  Entry* next_pending() {
    for (; next < order.size(); ++next) {
      Entry& entry = entries[order[next].index()];
      if (entry.state == State::pending) return &entry;
    }
    return nullptr;
  }

  void read_ahead() {
    std::unique_lock lock(mutex);
    while (true) {
      Entry* entry = nullptr;
      changed.wait(
          lock, [&] { return stopping || (waiting < options.depth && (entry = next_pending()) != nullptr); });
      if (stopping) return;
      entry->state = State::reading;
      const MicroBatchRange range = entry->range;
      const std::uint64_t began_in = segment;

      lock.unlock();
      Batch batch;
      std::exception_ptr error;
      try {
        batch = read(range);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();

      if (began_in != segment) continue;  // `entry` is gone
      entry->batch = std::move(batch);
      entry->error = error;
      entry->state = State::ready;
      ++waiting;
      changed.notify_all();
    }
  }
};

Loader::Loader(const Dataset& data, LoaderOptions options) : impl_(std::make_unique<Impl>(data, options)) {}

Loader::~Loader() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->changed.notify_all();
  impl_->thread.join();
}

void Loader::start(const std::vector<MicroBatchRange>& segment) {
  std::vector<MicroBatch> all;
  for (std::size_t i = 0; i < segment.size(); ++i) all.emplace_back(i);
  start(segment, all);
}

void Loader::start(const std::vector<MicroBatchRange>& segment, const std::vector<MicroBatch>& wanted) {
  std::vector<Impl::Entry> entries(segment.size());
  for (std::size_t i = 0; i < segment.size(); ++i) entries[i].range = segment[i];
  for (const MicroBatch micro_batch : wanted) {
    STAGECRAFT_CHECK(micro_batch.valid() && micro_batch.index() < segment.size(),
                     fmt::format("micro-batch {} of a segment of {}", micro_batch.value, segment.size()));
    entries[micro_batch.index()].state = Impl::State::pending;
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->entries.swap(entries);  // the old ones are freed outside the lock
    impl_->order = wanted;
    impl_->next = 0;
    impl_->waiting = 0;
    ++impl_->segment;
  }
  impl_->changed.notify_all();
}

Batch Loader::take(MicroBatch micro_batch) {
  using State = Impl::State;
  const auto begin = std::chrono::steady_clock::now();
  Batch batch;
  std::exception_ptr error;
  {
    std::unique_lock lock(impl_->mutex);
    STAGECRAFT_CHECK(
        micro_batch.valid() && micro_batch.index() < impl_->entries.size(),
        fmt::format("micro-batch {} of a segment of {}", micro_batch.value, impl_->entries.size()));
    Impl::Entry& entry = impl_->entries[micro_batch.index()];
    STAGECRAFT_CHECK(entry.state != State::unwanted && entry.state != State::taken,
                     fmt::format("micro-batch {} was {}", micro_batch.value,
                                 entry.state == State::taken ? "taken before" : "never announced"));
    if (entry.state == State::pending) {
      entry.state = State::taken;
      const MicroBatchRange range = entry.range;
      lock.unlock();
      batch = impl_->read(range);
    } else {
      impl_->changed.wait(lock, [&] { return entry.state == State::ready; });
      batch = std::move(entry.batch);
      error = entry.error;
      entry.state = State::taken;
      --impl_->waiting;
      lock.unlock();
      impl_->changed.notify_all();
    }
  }
  impl_->waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (error) std::rethrow_exception(error);
  return batch;
}

Seconds Loader::waited() const { return Seconds{impl_->waited}; }

}  // namespace stagecraft
