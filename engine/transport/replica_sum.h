#pragma once

// The sum of a stage's gradients over its replicas, in place, with the same bits on all of them. It runs
// beside whatever else the rank does: tensors are handed in as they are ready, and nothing waits before
// finish().
//
// Made by the transport where that sums by itself (Transport::make_sum), else of its transfers
// (engine/exchanged_sum.h).

#include <ATen/core/Tensor.h>

namespace stagecraft {

class ReplicaSum {
 public:
  virtual ~ReplicaSum() = default;

  /// Hands in a contiguous tensor, which nobody touches before finish(). Every replica hands in tensors of
  /// the same shapes in the same order.
  virtual void add(const at::Tensor& tensor) = 0;
  /// What was handed in leaves, though more could travel with it. Replicas flush at the same tensors.
  virtual void flush() = 0;
  /// Goes on as far as that is possible without waiting. Throws PeerError.
  virtual void poll() = 0;
  /// Flushes; what is computed from now on finds the sum in all that was handed in. Where poll() is the
  /// transport's background work it is called meanwhile. Throws PeerError.
  virtual void finish() = 0;
};

}  // namespace stagecraft
