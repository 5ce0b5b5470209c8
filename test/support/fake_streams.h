#pragma once

// Streams of the fake accelerator (fake_accelerator.h) beside the one that computes, number 0, whose work is
// over when it is launched. The others know only copies from the host. They are as late as streams may be: a
// copy is carried out when the computing stream or the host waits for an event behind it, and not before.
// Until then every byte of its destination is 0xFF (NaN, -1), which is what a reader that waits for no event
// gets. Memory is the computing stream's, so a copy must stand behind an event of that stream which is not
// older than the newest memory, else InternalError: on a GPU it could overtake work that still uses it.

#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>

namespace stagecraft::test {

class FakeStreams {
 public:
  using Id = c10::StreamId;
  using Event = std::uintptr_t;

  /// Of this thread, as a rank is one.
  [[nodiscard]] static FakeStreams& here();

  [[nodiscard]] Id make();
  [[nodiscard]] Id current() const { return current_; }
  void set_current(Id stream) { current_ = stream; }

  void memory_was_allocated() { ++allocations_; }
  void begin_copy(void* to, std::size_t bytes, std::function<void()> carry_out);
  [[nodiscard]] std::size_t copies_under_way() const;

  void record(Event event, Id stream);
  /// What is put on `stream` from now on begins when what `event` marks is over.
  void wait(Id stream, Event event);
  void carry_out(Event event);
  [[nodiscard]] bool over(Event event) const;
  void forget(Event event) { marks_.erase(event); }

 private:
  struct Stream {
    std::deque<std::function<void()>> copies;
    std::int64_t over = 0;               ///< copies that are
    std::int64_t behind_allocation = 0;  ///< the newest before the event that was waited for
  };
  struct Mark {
    Id stream = 0;
    std::int64_t position = 0;  ///< copies before it; of the computing stream: allocations
  };

  std::map<Id, Stream> streams_;
  std::map<Event, Mark> marks_;
  std::int64_t allocations_ = 0;
  Id current_ = 0;
};

}  // namespace stagecraft::test
