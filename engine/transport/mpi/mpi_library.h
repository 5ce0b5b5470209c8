#pragma once

// MPI, for those who can do without one: what a process asks of it before it has a transport.

#include "base/ids.h"
#include "engine/transport/process_session.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace stagecraft {

/// Which threads may call MPI: the one that made the session, or any, one at a time.
enum class MpiThreads : std::uint8_t { its_own, in_turn };

class MpiLibrary {
 public:
  virtual ~MpiLibrary() = default;

  /// MPI_Init_thread; once in a process. The session's end is MPI_Finalize (mpi_session.h). Throws PeerError when MPI
  /// cannot start, or not so that `threads` may call it.
  [[nodiscard]] virtual std::unique_ptr<ProcessSession> connect(MpiThreads threads) const = 0;

  /// For a process that fails before it has started MPI: returns where MPI has been started, and else ends the process
  /// and the others of its launcher, which then adds no lines of its own to what was said.
  virtual void leave(int exit_code) const noexcept = 0;

  // These may be called before MPI has started, on any one thread.

  /// "Open MPI v4.1.4"
  [[nodiscard]] virtual std::string version() const = 0;
  /// Whether it was built to take pointers into a GPU's memory ("CUDA-aware").
  [[nodiscard]] virtual bool built_for_cuda() const = 0;
  /// How long its launcher waits before it kills ranks that it was told to end, where that is known.
  [[nodiscard]] virtual std::optional<Seconds> kill_timeout() const = 0;
};

/// The MPI that this program is linked with. A program that defines this function itself is linked with none
/// (python/bindings/loaded_mpi.cpp); it throws InputError where there is none.
[[nodiscard]] const MpiLibrary& mpi_library();

}  // namespace stagecraft
