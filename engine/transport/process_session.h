#pragma once

// The processes of a run, connected by whatever launcher started them. One interface; mpi/mpi_session.h and
// c10d/c10d_session.h implement it.

#include "engine/transport/transport.h"

#include <cstdlib>
#include <memory>

namespace stagecraft {

/// Belongs to the thread that uses its transports, which it outlives.
class ProcessSession {
 public:
  virtual ~ProcessSession() = default;
  [[nodiscard]] virtual Rank rank() const = 0;
  [[nodiscard]] virtual int world() const = 0;

  /// Rank 0's options, everywhere. Collective.
  [[nodiscard]] virtual TransportOptions share(const TransportOptions& own) = 0;
  /// Of the first `ranks` processes, each of which makes its own: collective over them.
  [[nodiscard]] virtual std::unique_ptr<Transport> make_transport(const TransportOptions& options,
                                                                  int ranks) = 0;
  /// Of all.
  [[nodiscard]] std::unique_ptr<Transport> make_transport(const TransportOptions& options) {
    return make_transport(options, world());
  }

  /// Whether abort() ends the others too, at once: then the rank whose message counts has to be the first.
  [[nodiscard]] virtual bool ends_others() const { return true; }
  /// Ends every process of the job, this one with `exit_code`. Print first.
  [[noreturn]] void abort(int exit_code) noexcept {
    end_others(exit_code);
    std::_Exit(exit_code);
  }

 protected:
  /// May end this process as well.
  virtual void end_others(int exit_code) noexcept = 0;
};

}  // namespace stagecraft
