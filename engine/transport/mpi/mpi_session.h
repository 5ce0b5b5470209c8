#pragma once

// MPI's life in this process: initialized once, finalized once, or aborted.

#include "base/ids.h"
#include "engine/transport/mpi/mpi_library.h"
#include "engine/transport/process_session.h"

#include <memory>
#include <vector>

namespace stagecraft {

namespace transport {
class FutexSignals;
class Heartbeats;
}  // namespace transport

/// One in a process.
///
/// A rank that fails calls Transport::fail (which tells the others), prints or records why, and then
/// `abort`: the launcher ends all other ranks within seconds. The others learn the reason at their next wait
/// and do the same. MPI_Finalize would wait for the failed ones, so a session that has failed does not
/// finalize; a process that leaves without it makes the launcher end the rest as well.
class MpiSession final : public ProcessSession {
 public:
  /// MPI_Init_thread. Throws PeerError when MPI cannot start, or not so that `threads` may call it.
  explicit MpiSession(MpiThreads threads = MpiThreads::its_own);
  /// MPI_Finalize, unless a transport failed or an exception unwinds.
  ~MpiSession() override;
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] int world() const override { return world_; }

  /// There where the ranks on this machine outnumber the processors they may use, so that waits must give
  /// way.
  [[nodiscard]] transport::FutexSignals* signals() const { return signals_.get(); }

  /// Null where there can be none.
  [[nodiscard]] std::shared_ptr<Signs> heartbeats() const;

  /// Before there is a transport: a rank that fails instead aborts.
  [[nodiscard]] TransportOptions share(const TransportOptions& own) override;
  using ProcessSession::make_transport;
  [[nodiscard]] std::unique_ptr<Transport> make_transport(const TransportOptions& options,
                                                          int ranks) override;

  /// Wakes `peer` where it may be asleep on this machine: there is something for it to take in or to be done
  /// with.
  void ring(Rank peer) noexcept;

  void mark_failed() noexcept { failed_ = true; }
  [[nodiscard]] bool failed() const { return failed_; }

  /// Holds memory that MPI may still read or write, for a transfer that an exception cut short.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

 private:
  void end_others(int exit_code) noexcept override;

  Rank rank_;
  int world_ = 1;
  bool failed_ = false;
  std::unique_ptr<transport::FutexSignals> signals_;
  std::shared_ptr<transport::Heartbeats> heartbeats_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace stagecraft
