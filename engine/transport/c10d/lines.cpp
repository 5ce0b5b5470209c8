#include "engine/transport/c10d/lines.h"

#include "base/error.h"
#include "base/stopwatch.h"
#include "engine/transport/quiet_thread.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stagecraft::transport {
namespace {

constexpr int kMessages = 0;  // the tag of frames; places have the tags behind it
/// Frames of a rank that are waited for ahead of the first.
constexpr std::size_t kFramesAhead = 8;
/// What has left is given back at the latest when there is more of it.
constexpr std::size_t kPile = 64;

struct FrameHead {
  std::uint32_t bytes;  ///< behind this
  std::uint32_t more;   ///< frames of the same message follow
};

int tag_of(std::uint32_t place) { return static_cast<int>(place) + 1; }

}  // namespace

struct Lines::Peer {
  struct Frame {
    std::string bytes = std::string(sizeof(FrameHead) + kFrame, '\0');
    std::unique_ptr<Wire::Move> move;
  };
  std::vector<Frame> frames{kFramesAhead};
  std::mutex sending;  ///< a message's frames go one behind the other
  Watch hearing;
};

Lines::Lines(Wire& wire, Take take, Lost lost)
    : wire_(wire),
      take_(std::move(take)),
      lost_(std::move(lost)),
      peers_(static_cast<std::size_t>(wire.world())) {
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (static_cast<int>(r) != wire.rank().value) peers_[r] = std::make_unique<Peer>();
  }
}

Lines::~Lines() {
  ending_ = true;
  {
    const std::lock_guard lock(mutex_);
    woken_.notify_all();
  }
  end(seeing_off_);
  for (const auto& peer : peers_) {
    if (peer) end(peer->hearing);
  }
}

void Lines::start() {
  begin(seeing_off_, "c10d sends", [this] { see_off(); });
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (!peers_[r]) continue;
    const Rank from{static_cast<std::int32_t>(r)};
    begin(peers_[r]->hearing, "c10d messages", [this, from] { hear(from); });
  }
}

void Lines::begin(Watch& watch, const char* name, std::function<void()> loop) {
  watch.ended = false;
  watch.thread = quiet_thread(name, [&watch, loop = std::move(loop)] {
    loop();
    watch.ended = true;
  });
}

void Lines::end(Watch& watch) {
  // The thread may be about to begin a wait: interrupted until it has gone.
  while (!watch.ended) {
    {
      const std::lock_guard lock(watch.mutex);
      if (watch.move != nullptr) watch.move->interrupt();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (watch.thread.joinable()) watch.thread.join();
}

bool Lines::wait(Watch& watch, Wire::Move& move) {
  struct Watched {
    Watch& watch;
    Watched(Watch& its_watch, Wire::Move& its_move) : watch(its_watch) {
      const std::lock_guard lock(watch.mutex);
      watch.move = &its_move;
    }
    ~Watched() {
      const std::lock_guard lock(watch.mutex);
      watch.move = nullptr;
    }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;
  };
  const Watched watched(watch, move);
  while (!ending_) {
    if (move.wait()) return true;
  }
  return false;
}

bool Lines::await(Rank from, Wire::Move& move) { return wait(peers_[from.index()]->hearing, move); }

void Lines::hear(Rank from) {
  Peer& peer = *peers_[from.index()];
  const auto post = [&](Peer::Frame& frame) {
    frame.move = wire_.receive(from, kMessages, frame.bytes.data(), frame.bytes.size());
  };
  try {
    for (Peer::Frame& frame : peer.frames) post(frame);
    std::string message;
    for (std::size_t k = 0;; k = (k + 1) % kFramesAhead) {
      Peer::Frame& frame = peer.frames[k];
      if (!wait(peer.hearing, *frame.move)) return;
      FrameHead head{};
      std::memcpy(&head, frame.bytes.data(), sizeof head);
      message.append(frame.bytes, sizeof head, head.bytes);
      post(frame);
      if (head.more != 0) continue;
      take_(from, message_from(message));
      message.clear();
    }
  } catch (const std::exception& error) {
    if (!ending_) lost_(from, error.what());
  }
}

void Lines::post(Rank to, const Message& message, const std::function<void()>& over) {
  const std::string bytes = to_bytes(message);
  const std::lock_guard lock(peers_[to.index()]->sending);
  try {
    for (std::size_t begin = 0; begin < bytes.size(); begin += kFrame) {
      const std::size_t size = std::min(kFrame, bytes.size() - begin);
      const bool last = begin + size == bytes.size();
      const FrameHead head{static_cast<std::uint32_t>(size), last ? 0U : 1U};
      const auto frame = std::make_shared<std::string>(sizeof head, '\0');
      std::memcpy(frame->data(), &head, sizeof head);
      frame->append(bytes, begin, size);
      auto move = wire_.send(to, kMessages, frame->data(), frame->size());
      leave({to, frame, last ? over : std::function<void()>(), std::move(move)});
    }
  } catch (const PeerError& error) {
    lost_(to, error.what());
  }
}

void Lines::send(Rank to, std::uint32_t place, const void* bytes, std::size_t size,
                 std::shared_ptr<const void> memory, std::function<void()> over) {
  try {
    auto move = wire_.send(to, tag_of(place), bytes, size);
    leave({to, std::move(memory), std::move(over), std::move(move)});
  } catch (const PeerError& error) {
    lost_(to, error.what());
  }
}

std::unique_ptr<Wire::Move> Lines::open(Rank from, std::uint32_t place, void* bytes, std::size_t size) {
  try {
    return wire_.receive(from, tag_of(place), bytes, size);
  } catch (const PeerError& error) {
    lost_(from, error.what());
    return nullptr;
  }
}

void Lines::leave(Leaving leaving) {
  const std::lock_guard lock(mutex_);
  if (leaving.over) ++asked_;
  leaving_.push_back(std::move(leaving));
  if (asked_ > 0 || leaving_.size() > kPile) woken_.notify_all();
}

void Lines::see_off() {
  std::unique_lock lock(mutex_);
  while (true) {
    woken_.wait(lock, [&] {
      return ending_ || asked_ > 0 || (flushing_ && !leaving_.empty()) || leaving_.size() > kPile;
    });
    if (ending_) return;
    Leaving leaving = std::move(leaving_.front());
    leaving_.pop_front();
    if (leaving.over) --asked_;
    under_way_ = true;
    lock.unlock();
    bool gone = false;
    try {
      gone = wait(seeing_off_, *leaving.move);
    } catch (const PeerError& error) {
      lost_(leaving.to, error.what());
    }
    if (gone && leaving.over) leaving.over();
    leaving.move.reset();
    leaving.memory.reset();
    lock.lock();
    under_way_ = false;
    if (leaving_.empty()) woken_.notify_all();
  }
}

void Lines::flush(Seconds longest) {
  std::unique_lock lock(mutex_);
  flushing_ = true;
  woken_.notify_all();
  (void)woken_.wait_for(lock, std::chrono::duration<double>(longest.value),
                        [&] { return leaving_.empty() && !under_way_; });
  flushing_ = false;
}

}  // namespace stagecraft::transport
