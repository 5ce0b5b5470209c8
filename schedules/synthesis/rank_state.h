#pragma once

// What a rank holds at a moment, from how far its stages are: a stage's forwards, input parts and weight
// parts go in micro-batch order, so three counts a stage say everything. What memory.h adds up along one
// order is here a function of the counts, for reasoning about all orders at once.
//
// Receive slots are a property of the whole order. Here every channel has those that any order gives it, and
// those that the counts alone make necessary; so a state's bytes are never more than what the proof counts
// for an order that passes through it.

#include "schedules/synthesis/problem.h"

#include <vector>

namespace stagecraft::synthesis {

/// Of one seat: own micro-batches whose part is done. weights <= inputs <= forwards.
struct SeatCounts {
  int forwards = 0;
  int inputs = 0;
  int weights = 0;
  auto operator<=>(const SeatCounts&) const = default;
};

/// Of a rank's seats, in the order of Problem::seats_of.
using RankCounts = std::vector<SeatCounts>;

class RankState {
 public:
  /// Keeps a reference to `problem`.
  RankState(const Problem& problem, Rank rank);

  /// At least what the rank holds between two computations.
  [[nodiscard]] Bytes held(const RankCounts& counts) const;

  /// At least what it holds at the worst moment of a computation of its `place`-th seat, the end included;
  /// `counts` are those before. A whole backward needs as many weight parts done as input parts.
  [[nodiscard]] Bytes during(const RankCounts& counts, std::size_t place, Op op) const;

  /// The same where only the computation's own seat is known: the least over all counts of the others that
  /// an order which finishes can have by then.
  [[nodiscard]] Bytes least_during(const SeatCounts& own, std::size_t place, Op op) const;

  /// The counts behind it.
  [[nodiscard]] static RankCounts after(const RankCounts& counts, std::size_t place, Op op);

  /// Whether the rank's seats have the same micro-batches. Where not, what they hand over on the rank is not
  /// counted, and nothing is said of which of them goes before which.
  [[nodiscard]] bool aligned() const { return aligned_; }

 private:
  struct Desk {
    const StageCosts* costs = nullptr;
    int count = 0;
    Bytes sum;           ///< beside the gradients, for their sum over the replicas
    Bytes loss;          ///< on its way to where it is printed, if this is the last stage
    bool first = false;  ///< stage of the pipeline
    bool last = false;
    bool from_here = false, to_here = false;  ///< the stage before, the stage behind are on this rank
    bool receives = false, sends = false;     ///< every micro-batch from, to another rank
  };

  /// What of a seat's micro-batches there is, by kind.
  struct Things {
    int for_input = 0, for_weight = 0;   ///< kept for that part
    int outputs = 0;                     ///< handed over, under way or kept
    int input_gradients = 0;             ///< handed over or under way
    int activations = 0, gradients = 0;  ///< in slots, read
    int losses = 0;                      ///< that were sent
    int sums = 0;                        ///< over replicas, under way: from the last weight part
  };
  [[nodiscard]] Things things(const RankCounts& counts, std::size_t place) const;
  /// Of a seat of which only its own counts are known.
  [[nodiscard]] static Things own_things(const Desk& desk, const SeatCounts& counts);
  [[nodiscard]] static Bytes bytes_of(const Desk& desk, const Things& things);
  [[nodiscard]] static Bytes during(const Desk& desk, Things before, const Things& after, Op op);

  bool aligned_ = true;
  Bytes standing_;
  std::vector<Desk> desks_;
};

}  // namespace stagecraft::synthesis
