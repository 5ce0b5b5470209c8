#pragma once

// The lines from one process of a c10d group to all others: messages, in order, and bytes that follow from them.
// A wire can only be waited for, so a thread per other rank waits for its messages, and one more for what is sent.

#include "engine/transport/c10d/message.h"
#include "engine/transport/c10d/wire.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace stagecraft::transport {

class Lines {
 public:
  /// Gets a message on its sender's thread; messages of one sender in their order.
  using Take = std::function<void(Rank from, Message&& message)>;
  /// Gets, on any thread, that the connection to a rank is broken, and why. No more messages come from it.
  using Lost = std::function<void(Rank peer, const std::string& why)>;

  Lines(Wire& wire, Take take, Lost lost);
  /// Ends the threads; waits for no other rank.
  ~Lines();
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  /// Begins to listen. `take` may be called from now on.
  void start();
  /// Never waits for the other rank. `over`: called on another thread once the message is on its way. A broken
  /// connection is told to `lost`.
  void post(Rank to, const Message& message, const std::function<void()>& over = {});
  /// Bytes to a place that the other rank has opened. The same else; `memory` holds them.
  void send(Rank to, std::uint32_t place, const void* bytes, std::size_t size,
            std::shared_ptr<const void> memory, std::function<void()> over);
  /// Opens a place for another rank's bytes; null where the connection is broken, which is told to `lost`.
  [[nodiscard]] std::unique_ptr<Wire::Move> open(Rank from, std::uint32_t place, void* bytes,
                                                 std::size_t size);
  /// Waits for bytes that are on their way, on the thread of their sender's messages. False: they will not come.
  [[nodiscard]] bool await(Rank from, Wire::Move& move);
  /// A number for a place that no other open one has.
  [[nodiscard]] std::uint32_t next_place() { return place_.fetch_add(1) % kPlaces; }
  /// Until all that was posted is on its way, or so long.
  void flush(Seconds longest);

  /// Bytes of a message's text that travel at once.
  static constexpr std::size_t kFrame = 32 << 10;

 private:
  static constexpr std::uint32_t kPlaces = 1U << 30U;

  /// Where a thread of ours may sit in a wait.
  struct Watch {
    std::mutex mutex;
    Wire::Move* move = nullptr;
    std::atomic<bool> ended = true;
    std::thread thread;
  };
  struct Peer;
  struct Leaving {
    Rank to;
    std::shared_ptr<const void> memory;
    std::function<void()> over;
    std::unique_ptr<Wire::Move> move;  ///< destroyed before the memory
  };

  void begin(Watch& watch, const char* name, std::function<void()> loop);
  void end(Watch& watch);
  /// False: the lines end.
  [[nodiscard]] bool wait(Watch& watch, Wire::Move& move);
  void hear(Rank from);
  void see_off();
  void leave(Leaving leaving);

  Wire& wire_;
  const Take take_;
  const Lost lost_;
  std::atomic<bool> ending_ = false;
  std::atomic<std::uint32_t> place_ = 0;
  std::vector<std::unique_ptr<Peer>> peers_;  ///< by rank; null: this one

  std::mutex mutex_;  ///< of what follows
  std::condition_variable woken_;
  std::deque<Leaving> leaving_;
  std::size_t asked_ = 0;   ///< of these, for whose end somebody waits
  bool under_way_ = false;  ///< one of them is waited for
  bool flushing_ = false;
  Watch seeing_off_;
};

}  // namespace stagecraft::transport
