#pragma once

// What a rank holds at a moment, from how far its stages are: a stage's forwards, input parts and weight
// parts go in micro-batch order, so three counts per stage say everything. What peak_memory.h adds up
// along one order is here a function of the counts, for reasoning about all orders at once: for each
// moment of schedules/memory/held.h, how many micro-batches have passed it.
//
// Receive slots are a property of the whole order. Here every channel has those that any order gives it,
// and those that the counts alone make necessary. So a state's bytes are never more than what the proof
// counts for an order that passes through it.

#include "schedules/synthesis/problem.h"

#include <array>
#include <cstddef>
#include <vector>

namespace stagecraft::synthesis {

/// Of one replica: own micro-batches whose part is done. weights <= inputs <= forwards.
struct ReplicaCounts {
  int forwards = 0;
  int inputs = 0;
  int weights = 0;
  auto operator<=>(const ReplicaCounts&) const = default;
};

/// Of a rank's replicas, in the order of Problem::replicas_of.
using RankCounts = std::vector<ReplicaCounts>;

class RankMemory {
 public:
  RankMemory(const Problem& problem, Rank rank);

  /// At least what the rank holds between two computations.
  [[nodiscard]] Bytes held(const RankCounts& counts) const;

  /// At least what it holds at the worst moment of a computation of its `place`-th replica, the end included;
  /// `counts` are those before. A whole backward needs as many weight parts done as input parts.
  [[nodiscard]] Bytes during(const RankCounts& counts, std::size_t place, Op op) const;

  /// The same where only the computation's own replica is known: the least over all counts of the others that
  /// an order which finishes can have by then.
  [[nodiscard]] Bytes least_during(const ReplicaCounts& own, std::size_t place, Op op) const;

  /// The counts behind it.
  [[nodiscard]] static RankCounts after(const RankCounts& counts, std::size_t place, Op op);

  /// Whether the rank's replicas have the same micro-batches. Where not, what they hand over on the rank is not
  /// counted, and nothing is said of which of them goes before which.
  [[nodiscard]] bool aligned() const { return aligned_; }

  /// What is there all the time (standing_memory).
  [[nodiscard]] Bytes standing() const { return standing_; }
  /// What the `place`-th replica holds at least of a micro-batch whose forward is done and whose input part is
  /// not, slot included; of one that is recomputed, until then.
  [[nodiscard]] Bytes kept(std::size_t place) const;
  /// Whether the forward has room for the part of it that it makes all the time that it runs.
  [[nodiscard]] bool kept_from_begin(std::size_t place) const;
  /// And from the end of the input part to the end of the weight part.
  [[nodiscard]] Bytes kept_for_weight(std::size_t place) const;
  /// Receive slots of its channels beyond those of the micro-batches just counted, in every order of a rank
  /// that has `room` for those.
  [[nodiscard]] Bytes spare_slots(std::size_t place, Bytes room) const;

 private:
  struct ReplicaMemory {
    StageCosts costs;
    Situation here;  ///< on this rank counts what any of its micro-batches has there
    MomentDeltas deltas;
    Bytes activation, gradient;  ///< a receive slot of either, if all of them come from other ranks
    Bytes loss;                  ///< on its way to where it is printed
    Bytes sum;                   ///< beside the gradients, for their sum over the replicas
    int count = 0;
    bool knows_previous = false, knows_next = false;  ///< the replica before, behind it has all of them
  };

  /// How far a replica is.
  struct Progress {
    std::array<int, kMoments> passed{};  ///< micro-batches that have passed each moment
    int activations = 0, gradients = 0;  ///< in slots, read
    bool loss_sent = false;
    bool summing = false;  ///< over replicas: from the last weight part

    [[nodiscard]] int& operator[](Moment moment) { return passed[to_size(moment)]; }
  };
  [[nodiscard]] Progress progress(const RankCounts& counts, std::size_t place) const;
  /// Of a replica of which only its own counts are known.
  [[nodiscard]] static Progress own_progress(const ReplicaMemory& replica, const ReplicaCounts& counts);
  [[nodiscard]] static Bytes bytes_of(const ReplicaMemory& replica, const Progress& progress);
  [[nodiscard]] static Bytes made_by_forward(const ReplicaMemory& replica);
  [[nodiscard]] static Bytes least_transient(const ReplicaMemory& replica, Op op);
  [[nodiscard]] static Bytes during(const ReplicaMemory& replica, Progress before, const Progress& after,
                                    Op op);

  bool aligned_ = true;
  Bytes standing_;
  std::vector<ReplicaMemory> replicas_;
};

}  // namespace stagecraft::synthesis
