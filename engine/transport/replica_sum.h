#pragma once

// A sum of gradients over copies that ranks hold, in place, with the same bits in all of them. Copies are a
// stage's replicas, one per rank, or the layers of a tied weight, of which a rank may hold several. It runs
// beside whatever else the rank does: tensors are handed in as they are ready, and nothing waits before
// finish().
//
// Made by the transport where that sums by itself (Transport::make_sum), else of its transfers
// (engine/core/exchanged_sum.h).

#include "base/ids.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace stagecraft {

class ReplicaSum {
 public:
  virtual ~ReplicaSum() = default;

  /// Hands in a contiguous tensor, which nobody touches before finish(). Every copy's tensors come with the
  /// same shapes in the same order.
  virtual void add(const at::Tensor& tensor) = 0;
  /// The same of each copy that this rank holds, in their order.
  virtual void add(const std::vector<at::Tensor>& own) = 0;
  /// What was handed in leaves, though more could travel with it. Replicas flush at the same tensors.
  virtual void flush() = 0;
  /// Goes on as far as that is possible without waiting. Throws PeerError.
  virtual void poll() = 0;
  /// Flushes; what is computed from now on finds the sum in all that was handed in. Where poll() is the
  /// transport's background work it is called meanwhile. Throws PeerError.
  virtual void finish() = 0;

  /// How much of it moves. Both stay 0 where a device moves it, which the host does not see (spans()).
  struct Progress {
    Bytes begun, done;  ///< of tensors, since the sum was made
  };
  [[nodiscard]] virtual Progress progress() const { return {}; }

  /// When a device moved some of it, counted from where finish() ended in what is computed: not above 0.
  struct Span {
    Seconds begin, end;
    Bytes bytes;  ///< of tensors
  };
  /// Asks the device, on the rank's thread, once that point is over there.
  using Spans = std::function<std::vector<Span>()>;
  /// Before anything is handed in: spans() are wanted.
  virtual void time_spans() {}
  /// Behind finish(). Empty where the host moves it.
  [[nodiscard]] virtual Spans spans() { return {}; }
};

}  // namespace stagecraft
