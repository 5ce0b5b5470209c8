#include "engine/transport/c10d/store_wire.h"

#include "base/bounded.h"
#include "base/error.h"
#include "engine/transport/c10d/first_line.h"
#include "engine/transport/quiet_thread.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace stagecraft::transport {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using ByteVector = std::vector<std::uint8_t>;

/// A pop that times out leaves a warning of c10d's in the log, so none should; an int of milliseconds holds it.
constexpr std::chrono::milliseconds kNoTimeout = std::chrono::hours(24 * 20);

/// Of a message, for each entry of a queue: c10d ends connections that bring more than 8 MiB at once.
constexpr std::size_t kPiece = 1 << 20;

/// Before the bytes of a piece. Of `kEnd` there are none: the rank itself ends.
struct QueueHead {
  std::int32_t from;
  std::int32_t tag;
  std::uint64_t left;  ///< of the message, behind this piece
};
constexpr std::int32_t kEnd = -1;
/// Counts the ranks that have ended their wires.
constexpr const char* kEnded = "ended";

std::string queue_of(Rank rank) { return fmt::format("to {}", rank.value); }

void push(c10d::Store& store, Rank to, const QueueHead& head, const void* bytes, std::size_t size) {
  ByteVector piece(sizeof head + size);
  std::memcpy(piece.data(), &head, sizeof head);
  if (size > 0) std::memcpy(piece.data() + sizeof head, bytes, size);
  store.queuePush(queue_of(to), piece);
}

/// What came for this rank, and who waits for it.
class Inbox {
 public:
  struct Place {
    void* bytes;
    std::size_t size;
    bool filled = false;
    bool interrupted = false;
  };
  using Key = std::pair<std::int32_t, std::int32_t>;  ///< from, tag

  void post(const Key& key, const std::shared_ptr<Place>& place) {
    const std::lock_guard lock(mutex_);
    Line& line = lines_[key];
    if (line.come.empty()) return line.posted.push_back(place);
    fill(*place, line.come.front());
    line.come.pop_front();
  }
  void withdraw(const Key& key, const std::shared_ptr<Place>& place) {
    const std::lock_guard lock(mutex_);
    std::erase(lines_[key].posted, place);
  }
  void take(const QueueHead& head, const ByteVector& piece) {
    const std::lock_guard lock(mutex_);
    Line& line = lines_[{head.from, head.tag}];
    line.coming.insert(line.coming.end(), piece.begin() + sizeof head, piece.end());
    if (head.left > 0) return;
    const ByteVector message = std::exchange(line.coming, {});
    if (line.posted.empty()) return line.come.push_back(message);
    fill(*line.posted.front(), message);
    line.posted.pop_front();
    changed_.notify_all();
  }
  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    broken_ = why;
    changed_.notify_all();
  }
  [[nodiscard]] bool wait(Place& place) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return place.filled || place.interrupted || !broken_.empty(); });
    if (place.filled) return true;
    if (std::exchange(place.interrupted, false)) return false;
    throw PeerError(broken_);
  }
  void interrupt(Place& place) {
    const std::lock_guard lock(mutex_);
    place.interrupted = true;
    changed_.notify_all();
  }

 private:
  struct Line {
    ByteVector coming;  ///< of a message that is not whole yet
    std::deque<ByteVector> come;
    std::deque<std::shared_ptr<Place>> posted;
  };
  static void fill(Place& place, const ByteVector& message) {
    STAGECRAFT_CHECK(message.size() <= place.size, "a message is larger than its place");
    if (!message.empty()) std::memcpy(place.bytes, message.data(), message.size());
    place.filled = true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Line> lines_;
  std::string broken_;
};

class SentMove final : public Wire::Move {
 public:
  bool wait() override { return true; }
  void interrupt() override {}
};

class ReceiveMove final : public Wire::Move {
 public:
  ReceiveMove(std::shared_ptr<Inbox> inbox, const Inbox::Key& key, void* bytes, std::size_t size)
      : inbox_(std::move(inbox)),
        key_(key),
        place_(std::make_shared<Inbox::Place>(Inbox::Place{bytes, size})) {
    inbox_->post(key_, place_);
  }
  ~ReceiveMove() override { inbox_->withdraw(key_, place_); }
  ReceiveMove(const ReceiveMove&) = delete;
  ReceiveMove& operator=(const ReceiveMove&) = delete;
  bool wait() override { return inbox_->wait(*place_); }
  void interrupt() override { inbox_->interrupt(*place_); }

 private:
  std::shared_ptr<Inbox> inbox_;
  Inbox::Key key_;
  std::shared_ptr<Inbox::Place> place_;
};

class StoreWire final : public Wire {
 public:
  StoreWire(StorePtr store, Rank rank, int world, bool serves)
      : rank_(rank),
        world_(world),
        serves_(serves),
        store_(std::move(store)),
        out_(store_->clone()),
        reader_(std::make_shared<Reader>()) {
    reader_->inbox = std::make_shared<Inbox>();
    reader_->store = store_->clone();
    reader_->store->setTimeout(kNoTimeout);
    thread_ = quiet_thread("store messages", [its = reader_, rank] { its->run(rank); });
  }
  ~StoreWire() override {
    // The thread waits in the store, which may hang: then it is left behind.
    constexpr Seconds kPatience{5};
    (void)done_within(kPatience, [out = out_, me = rank_, others = serves_ ? world_ : 0] {
      push(*out, me, {me.value, kEnd, 0}, nullptr, 0);
      out->add(kEnded, 1);
      while (out->add(kEnded, 0) < others) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
    if (reader_->ended_within(kPatience)) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }
  StoreWire(const StoreWire&) = delete;
  StoreWire& operator=(const StoreWire&) = delete;

  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] int world() const override { return world_; }
  [[nodiscard]] bool carries_tensors() const override { return false; }

  std::unique_ptr<Move> send(Rank to, int tag, const void* bytes, std::size_t size) override {
    const std::lock_guard lock(sending_);
    try {
      const auto* const from = static_cast<const std::uint8_t*>(bytes);
      std::size_t sent = 0;
      do {
        const std::size_t piece = std::min(kPiece, size - sent);
        push(*out_, to, {rank_.value, tag, size - sent - piece}, from + sent, piece);
        sent += piece;
      } while (sent < size);
    } catch (const std::exception& error) {
      throw PeerError(fmt::format("torchrun's store fails: {}", first_line(error)));
    }
    return std::make_unique<SentMove>();
  }
  std::unique_ptr<Move> receive(Rank from, int tag, void* bytes, std::size_t size) override {
    return std::make_unique<ReceiveMove>(reader_->inbox, Inbox::Key{from.value, tag}, bytes, size);
  }

 private:
  /// Reads this rank's queue on a thread, which owns it too.
  struct Reader {
    std::shared_ptr<Inbox> inbox;
    StorePtr store;

    void run(Rank rank) {
      try {
        while (true) {
          const ByteVector piece = store->queuePop(queue_of(rank), /*block=*/true);
          QueueHead head{};
          STAGECRAFT_CHECK(piece.size() >= sizeof head, "a message without its head");
          std::memcpy(&head, piece.data(), sizeof head);
          if (head.tag == kEnd) break;
          inbox->take(head, piece);
        }
      } catch (const std::exception& error) {
        inbox->fail(fmt::format("torchrun's store fails: {}", first_line(error)));
      }
      const std::lock_guard lock(mutex);
      ended = true;
      changed.notify_all();
    }
    [[nodiscard]] bool ended_within(Seconds patience) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, std::chrono::duration<double>(patience.value), [&] { return ended; });
    }

    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
  };

  Rank rank_;
  int world_;
  bool serves_;
  StorePtr store_;
  StorePtr out_;
  std::mutex sending_;  ///< pieces of a message go one behind the other
  std::shared_ptr<Reader> reader_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Wire> make_store_wire(StorePtr store, const std::string& name, Rank rank, int world,
                                      bool serves) {
  return std::make_unique<StoreWire>(c10::make_intrusive<c10d::PrefixStore>(name, std::move(store)), rank,
                                     world, serves);
}

}  // namespace stagecraft::transport
