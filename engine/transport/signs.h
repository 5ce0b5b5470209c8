#pragma once

// What ranks know of each other's processes beside what they send.

#include "base/ids.h"

#include <cstdint>

namespace stagecraft {

/// What all ranks do together; a spare waits for the run's end, however long that takes.
enum class Phase : std::uint8_t { start_up, step, save, spare };

struct Sign {
  enum class Life : std::uint8_t {
    unknown,  ///< nothing was ever heard, or the rank has left after its last call
    alive,    ///< its process runs, whatever its rank's thread does
    silent,   ///< it was heard and is not any more: stopped, or its machine is down or cut off
    gone      ///< the process has ended without a goodbye
  };
  Life life = Life::unknown;
  Seconds silence{0};  ///< since it was last heard, or since it is gone
  Phase phase = Phase::start_up;
  bool waits = false;  ///< for another rank, for longer than a moment
};

/// Threads: show() and of() may be called from one thread, beside whatever the object does on its own.
class Signs {
 public:
  virtual ~Signs() = default;
  [[nodiscard]] virtual int world() const = 0;
  [[nodiscard]] virtual Sign of(Rank rank) const = 0;
  /// What the others are to know of this rank.
  virtual void show(Phase phase, bool waits) noexcept = 0;
};

}  // namespace stagecraft
