#pragma once

// Moving tensors between ranks. One interface, several back ends (local, where ranks are threads of this
// process; mpi; c10d, where torchrun started them; nccl, staged and direct for devices), chosen in
// transport/factory.h. A transport never aliases buffers: what was sent may be
// overwritten after the send is waited for, and what was received is the receiver's own memory, in all back
// ends.
//
// Threads: a Transport object belongs to one rank's thread.
// Failure: every blocking call gives up after the bound of the present phase (waits.h), within seconds when
// another rank's process has ended, and at once when another rank has failed, with PeerError that names rank,
// peer, tag and age. No call hangs.

#include "base/error.h"
#include "engine/transport/replica_sum.h"
#include "engine/transport/waits.h"
#include "schedules/program/action.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

/// A transfer under way. Destroying one that is not complete is a programmer error, except while an exception
/// unwinds.
class Request {
 public:
  virtual ~Request() = default;
};
using RequestPtr = std::unique_ptr<Request>;

/// Another rank failed, and waits for this one in the meeting place.
struct MeetAgainError : PeerError {
  using PeerError::PeerError;
};

class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual Rank rank() const = 0;
  [[nodiscard]] virtual int world() const = 0;
  [[nodiscard]] virtual std::string name() const = 0;  ///< "local", "mpi", "c10d"
  /// Of a transport between hosts: whether it takes tensors in a device's memory as well. It knows nothing of
  /// streams: such memory is read or written from the call on, whatever is still launched there.
  [[nodiscard]] virtual bool takes_device_memory() const { return false; }
  /// Of a transport between hosts. False: what ranks tell each other, and tensors of a few numbers.
  [[nodiscard]] virtual bool carries_tensors() const { return true; }

  /// `into` (contiguous) is written until the request is waited for.
  [[nodiscard]] virtual RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) = 0;
  /// `tensor` (contiguous) must not change until the request is waited for.
  [[nodiscard]] virtual RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) = 0;
  /// The same, but never blocks: for transfers that the program's proof knows nothing of.
  [[nodiscard]] virtual RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) = 0;
  /// How long this rank waits for others. One for all layers of a transport.
  [[nodiscard]] virtual Waits& waits() = 0;
  /// Whether the transfer is complete; moves transfers forward.
  [[nodiscard]] virtual bool test(Request& request) = 0;
  virtual void wait(Request& request) = 0;
  /// Moves transfers forward without waiting; called between layers. Throws PeerError when another rank has
  /// failed, so that long work ends early.
  virtual void progress() = 0;
  /// `work` is called by progress() and, again and again, while this rank waits for a transfer: whatever can
  /// go on in the meantime. It may begin and test transfers, not wait for any. Empty: none.
  virtual void set_background(std::function<void()> work) = 0;
  /// This rank's part of a sum of what `tag` names over copies, whose ranks these are, its own among them; one
  /// at a time of a stage, tied weight or norm, which this object outlives. Null: the transport does not sum these by
  /// itself.
  [[nodiscard]] virtual std::unique_ptr<ReplicaSum> make_sum(const std::vector<Rank>& /*copies*/,
                                                             const Tag& /*tag*/) {
    return nullptr;
  }

  // Collectives, in the same order on all ranks. Small, but for what says otherwise: configuration, norms.
  virtual void barrier() = 0;
  /// Every rank's contribution, in rank order; lengths may differ.
  [[nodiscard]] virtual std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) = 0;
  [[nodiscard]] virtual std::vector<std::string> all_gather_text(const std::string& mine) = 0;
  /// Every rank's text goes to rank `to`, which `take`s them in rank order, one at a time: it holds its own
  /// and one other's. Texts may be of any length. `take` is not called elsewhere.
  virtual void gather_text(Rank to, const std::string& mine,
                           const std::function<void(Rank from, const std::string& text)>& take) = 0;
  /// Rank 0's text, everywhere. Of any length.
  [[nodiscard]] virtual std::string broadcast(const std::string& text) = 0;

  // Agreements: what all ranks are asked in the same order, each when it comes to it, and answered later, while
  // they work. Apart from the collectives above.

  /// Brings `mine` to the next question. Never blocks.
  virtual void begin_agreement(int mine) = 0;
  /// The most that any rank brought to the oldest question that this rank has not heard the answer of. Blocks
  /// until all ranks have brought theirs.
  [[nodiscard]] virtual int finish_agreement() = 0;

  /// Tells the others that this rank failed: their blocking calls throw PeerError with `reason`. Never
  /// throws.
  virtual void fail(const std::string& reason) noexcept = 0;
  /// The same from a rank that can still speak: the others' calls throw MeetAgainError, and all may meet in the
  /// transport that meeting_place() made before.
  virtual void call_off(const std::string& reason) noexcept = 0;
  /// Another transport between the hosts of the same ranks, which knows nothing of this one's failures.
  /// Collective.
  [[nodiscard]] virtual std::unique_ptr<Transport> meeting_place(const TransportOptions& options) = 0;
};

}  // namespace stagecraft
