#pragma once

// Bytes between the processes of a c10d group. What these can do is what c10d's Gloo can: a transfer can be waited
// for, by a thread, and neither polled nor bounded. Gloo's Work says that it is complete only to who waited for
// it, and a wait that ends by its timeout breaks every connection of the group.

#include "base/ids.h"

#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <memory>
#include <string>

namespace c10d {
class ProcessGroup;
}  // namespace c10d

namespace stagecraft::transport {

/// Thread-safe. Transfers of one (from, to, tag) match in the order they were begun.
class Wire {
 public:
  /// A transfer under way. May be destroyed before it is over, once nobody waits for it; no other transfer between
  /// the two ranks can be relied on from then on.
  class Move {
   public:
    virtual ~Move() = default;
    /// Until it is over. False: interrupted, and may be called again. One thread at a time. Throws PeerError
    /// where the connection is broken.
    [[nodiscard]] virtual bool wait() = 0;
    /// Ends the wait() that another thread is in, or comes to next.
    virtual void interrupt() = 0;
  };

  virtual ~Wire() = default;
  [[nodiscard]] virtual Rank rank() const = 0;
  [[nodiscard]] virtual int world() const = 0;
  /// False: only what is small should go over it.
  [[nodiscard]] virtual bool carries_tensors() const { return true; }

  // Neither waits for the other rank. The memory stays until the move is over or destroyed. Tags are at least 0.
  // Both throw PeerError where the connection is broken.

  /// Is over when the bytes are on their way, and over Gloo not before the other rank has posted its receive.
  [[nodiscard]] virtual std::unique_ptr<Move> send(Rank to, int tag, const void* bytes, std::size_t size) = 0;
  /// Of at most `size` bytes, which nobody counts: fewer are not noticed, and more end the process.
  [[nodiscard]] virtual std::unique_ptr<Move> receive(Rank from, int tag, void* bytes, std::size_t size) = 0;
};

/// Over the group's backend for the CPU's memory, which nobody else may use from now on. Throws InputError where
/// that is not Gloo.
[[nodiscard]] std::unique_ptr<Wire> make_c10d_wire(const c10::intrusive_ptr<c10d::ProcessGroup>& group);
/// Over the group that Python registered under this name (`group.group_name`). Throws InputError where there is none.
[[nodiscard]] std::unique_ptr<Wire> make_c10d_wire(const std::string& group_name);

}  // namespace stagecraft::transport
