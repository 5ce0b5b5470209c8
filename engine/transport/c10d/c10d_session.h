#pragma once

// A process's part in a c10d group: one per group and process, under all transports over it.
//
// Python makes the group (torchrun has started the process) and ends the process; here nothing is initialized or
// finalized. Without Python there is torchrun's store alone (store_wire.h). A rank that fails calls Transport::fail, which tells the others. The group is the session's alone: a
// pipeline brings one of its own (torch.distributed.new_group), so two in a process do not mix.

#include "engine/transport/c10d/wire.h"
#include "engine/transport/process_session.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

namespace transport {
class Heartbeats;
class Lines;
class Mailbox;
struct Message;
}  // namespace transport

/// Threads: belongs to the rank's thread, but for what says otherwise. Outlives its transports.
class C10dSession final : public ProcessSession {
 public:
  /// Collective: waits for the others to make theirs, so long each time. Throws PeerError.
  explicit C10dSession(std::unique_ptr<transport::Wire> wire,
                       Seconds patience = TransportOptions().start_up_timeout);
  /// Over the group of this name. Throws InputError as transport::make_c10d_wire does.
  explicit C10dSession(const std::string& group_name, Seconds patience = TransportOptions().start_up_timeout);
  /// Says goodbye, unless a transport failed, and waits some seconds for that of the others.
  ~C10dSession() override;
  C10dSession(const C10dSession&) = delete;
  C10dSession& operator=(const C10dSession&) = delete;

  [[nodiscard]] Rank rank() const override { return wire_->rank(); }
  [[nodiscard]] int world() const override { return wire_->world(); }
  [[nodiscard]] bool carries_tensors() const { return wire_->carries_tensors(); }
  /// Null where there can be none.
  [[nodiscard]] std::shared_ptr<Signs> heartbeats() const;
  [[nodiscard]] TransportOptions share(const TransportOptions& own) override;
  using ProcessSession::make_transport;
  [[nodiscard]] std::unique_ptr<Transport> make_transport(const TransportOptions& options,
                                                          int ranks) override;
  /// torchrun ends them, and waits for them to end by themselves.
  [[nodiscard]] bool ends_others() const override { return false; }
  /// There is a processor for each rank of this machine, and one for its threads.
  [[nodiscard]] bool roomy() const { return roomy_; }

  void mark_failed() noexcept { failed_ = true; }
  [[nodiscard]] bool failed() const { return failed_; }
  /// Holds memory that other ranks' bytes may still come to, for a transfer that an exception cut short.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

  // For transports.

  /// That of the next one. Transports are made in the same order on all ranks.
  [[nodiscard]] transport::Mailbox& next_mailbox();
  /// Until what was told to others is on its way, or so long.
  void flush(Seconds longest);
  struct Loss {
    Rank rank;
    std::string why;
  };
  /// Why a wait for `peer`, or for all ranks, may be in vain: a rank's connection broke though it did not say goodbye,
  /// whoever is waited for; or one that is waited for said it.
  [[nodiscard]] std::optional<Loss> loss(std::optional<Rank> peer) const;

 private:
  /// torchrun does, when this process has ended.
  void end_others(int /*exit_code*/) noexcept override {}
  [[nodiscard]] transport::Mailbox& mailbox(std::int32_t number);
  void take(Rank from, transport::Message&& message);
  void lose(Rank peer, const std::string& why);
  /// Until all others have said theirs, for some seconds. A connection that is closed before all of it is read loses
  /// what it brought the other end, too: our last messages.
  void await_goodbyes() const;

  std::unique_ptr<transport::Wire> wire_;
  bool roomy_ = false;
  bool failed_ = false;
  std::vector<std::shared_ptr<void>> kept_;
  std::int32_t next_ = 0;

  mutable std::mutex mutex_;  ///< of what follows
  std::map<std::int32_t, std::unique_ptr<transport::Mailbox>> mailboxes_;
  std::vector<bool> left_;  ///< by rank: it said goodbye
  std::optional<Loss> loss_;

  std::unique_ptr<transport::Lines> lines_;  ///< its threads use all of the above
  std::unique_ptr<Transport> talk_;          ///< the session's own
  std::shared_ptr<transport::Heartbeats> heartbeats_;
};

}  // namespace stagecraft
