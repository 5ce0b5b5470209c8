#pragma once

// The memory proof's peak of one rank, read off the rank's own order with lowering's default options. What
// counts is in schedules/memory/held.h. The proof still has the last word on what a search returns.

#include "schedules/lowering/lowering.h"
#include "schedules/synthesis/problem.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace stagecraft::synthesis {

/// A rank's peak while its order is made: never falls, and is peak_memory() once the order is whole.
class PeakMemory {
 public:
  /// Keeps a reference to `problem`.
  PeakMemory(const Problem& problem, Rank rank);

  /// The next of the rank's order. False where peak() is as before.
  bool take(const Compute& compute);
  [[nodiscard]] Bytes peak(int extra_slots = LoweringOptions{}.extra_slots) const;

 private:
  struct Channel {
    int transfers = 0;
    int held = 0;
    int reading = 0;
  };
  /// What the rank knows of one of its replicas.
  struct ReplicaState {
    Channel activations, gradients;
    std::vector<MicroBatch> sent_activations, sent_gradients;  // under way, oldest first
    int inputs = 0, weights = 0;                               // parts begun
    int count = 0;                                             // own micro-batches
  };

  [[nodiscard]] ReplicaState& replica(StageId stage);
  [[nodiscard]] bool includes(int done, StageId stage, MicroBatch mb) const;
  void pass(const MicroBatchMemory& memory, Moment moment);
  void pass(StageId stage, MicroBatch mb, Moment moment);
  void read(Channel& channel);
  void update_peak(Bytes above = {}) { peak_ = std::max(peak_, now_ + above); }
  void run(const Compute& c, const MicroBatchMemory& memory, Op op);
  void forward(const Compute& c);
  void backward(const Compute& c);
  void send(std::vector<MicroBatch>& sent, const Compute& c, Moment over);
  void finish(const Compute& c, ReplicaState& at, const MicroBatchMemory& memory);

  const Problem& problem_;
  Rank rank_;
  const std::vector<std::size_t>& own_;  // replicas
  std::vector<ReplicaState> replicas_;
  Bytes standing_;
  Bytes now_;  // beside what stands and slots
  Bytes peak_;
  bool more_slots_ = false;  // by the last one taken
};

/// Linear in the order's length; fast enough for the inner loop of a search. `order` is of a rank of
/// well-formed orders. `extra_slots` are those that lowering gives a channel beyond the ones read at once:
/// the usual ones, or more where the rendezvous rule needs them (Pricing::extra_slots).
[[nodiscard]] Bytes peak_memory(const Problem& problem, Rank rank, const Order& order,
                                int extra_slots = LoweringOptions{}.extra_slots);

/// Whether every rank is within the capacity, if there is one.
[[nodiscard]] bool fits(const Problem& problem, const Orders& orders,
                        int extra_slots = LoweringOptions{}.extra_slots);

/// What `rank` holds whatever its order: what stands of its stages and, where losses are printed, slots for
/// them.
[[nodiscard]] Bytes standing_memory(const Problem& problem, Rank rank);

}  // namespace stagecraft::synthesis
