#pragma once

// How ranks of one machine wake each other. MPI can only be polled, and where ranks outnumber processors
// their polls take the time of those that work, or, with long sleeps between, come late.

#include "base/ids.h"

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

namespace stagecraft::transport {

/// A counter per rank, in memory that the ranks of a machine share. Whoever has sent something, or taken
/// something in that its sender waits to be rid of, rings; the other looks at its messages then. Rings are
/// hints: one may come early or for another message, and some of MPI's own turns have none, so a listener
/// still looks from time to time.
class FutexSignals {
 public:
  /// Collective over `machine`: ranks that share processors. Only those among them that share memory too hear
  /// each other.
  explicit FutexSignals(MPI_Comm machine);
  /// Collective. Not for a session that has failed.
  ~FutexSignals();
  FutexSignals(const FutexSignals&) = delete;
  FutexSignals& operator=(const FutexSignals&) = delete;

  /// Nothing where the rank shares no memory with this one.
  void ring(Rank rank) noexcept;
  /// How often this rank's bell has rung.
  [[nodiscard]] std::uint32_t heard() const;
  /// Sleeps until it has rung more often than `heard`, or so long.
  void listen(std::uint32_t heard, std::chrono::nanoseconds longest) const;

 private:
  using Bell = std::atomic<std::uint32_t>;
  static_assert(Bell::is_always_lock_free && sizeof(Bell) == sizeof(std::uint32_t), "a futex is 32 bits");

  MPI_Comm neighbours_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  Bell* mine_ = nullptr;
  std::vector<Bell*> bells_;  // by rank of the world; null: out of hearing
};

}  // namespace stagecraft::transport
