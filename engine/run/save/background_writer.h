#pragma once

// Printing that never holds up who prints. A run's ranks wait for each other, so one that sits in a write to
// a terminal that nobody reads (`| less`, a stopped terminal, a dead collector) would take the others'
// timeout with it; and a pipe that was closed (`| head`), a full disk or a terminal that is gone is no reason
// to stop.

#include "base/ids.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace stagecraft {

/// Writes texts to file descriptors, in the order they came, on a thread of its own.
///
/// Requires: SIGPIPE is ignored. The descriptors stay open while it lives.
/// Guarantees: no call but flush() and the destructor waits for a reader. Of text that comes faster than it
/// is read, `most_waiting` bytes are kept; what comes then is left out until all of that is read, and then a
/// line says how many lines are missing. Text that cannot be written is left out in the same way. Threads:
/// any may call.
class BackgroundWriter {
 public:
  /// What to say on standard error when a write to `descriptor` fails for the first time; "": nothing.
  /// Called on the writer's thread. `error` is the errno.
  using Trouble = std::function<std::string(int descriptor, int error)>;

  explicit BackgroundWriter(Trouble trouble = {}, std::size_t most_waiting = 1 << 20);
  /// Gives what waits `kPatience` to be written. A thread that sits in a write is left behind.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  void write(int descriptor, std::string text);
  /// For pictures of the moment, such as a progress bar: dropped where what waits is more than a screen.
  void draw(int descriptor, std::string text);
  /// Waits until everything is written, at most `patience`. Returns whether it is.
  bool flush(Seconds patience = kPatience);

  static constexpr Seconds kPatience{5};

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with the thread, which may outlive this
};

}  // namespace stagecraft
