#pragma once

// Lower bounds of a simulated synchronous step, as functions of the cuts.
//
// Every bound here is a chain of things that happen one after the other in any run of the program: what it
// takes is a sum over stages and boundaries, so its least value over all cuts is a shortest path, found by a
// dynamic program over (stage, layer). Links count as if every pair of ranks had its own: shared links only
// make a program later.
//
// Two kinds. A critical path (Simulator::critical_path) bounds all steps of the program it was found in, and
// is tight where it was found. The others hold whatever the order of computations is, for any synchronous
// program whose replicas take micro-batches round-robin:
//   - a rank's work: before a rank's first computation some micro-batch has been forward through all stages
//     before its first one (the head); then it does all its forwards and input parts, ceil(m / replicas) of each
//     stage at the busiest replica; after its last input part that micro-batch's gradient goes back through
//     all those stages, and the first of them steps (the tail). Or: it does all it has, weight parts
//     included, and then reduces and steps. Where no backward is split, the first of the two counts weight
//     parts as well, in the tail too;
//   - one micro-batch forward through all stages and back, stage 0's reduction and step.

#include "partitioner/search/chain_costs.h"
#include "schedules/costs/collectives.h"
#include "schedules/program/recompute.h"
#include "schedules/simulator/simulator.h"

#include <cstddef>
#include <vector>

namespace stagecraft::planning {

/// A sum over stages and the boundaries into them.
struct StepBound {
  struct Stage {
    // Times so often, each divided by a speed:
    double forward = 0, backward_input = 0, backward_weight = 0, step = 0;
    double trained_forward = 0;  ///< of the layers that are not frozen alone
    // Forwards again, where the stage repeats them: those that any setting repeats, and those that only
    // Recompute::all does.
    double again = 0, last_again = 0;
    double reductions = 0;
    // Of the boundary into the stage, with its transfers in either direction:
    double latency = 0, seconds_per_byte = 0;

    void add(const Stage& other, double weight);
    [[nodiscard]] double forwards(Recompute setting) const {
      if (setting == Recompute::none) return forward;
      return forward + again + (setting == Recompute::all ? last_again : 0);
    }
  };
  double constant = 0;
  std::vector<Stage> stages;

  void add(const StepBound& other, double weight);
};

/// What stages take at a placement.
class PlacedCosts {
 public:
  /// Keeps references to `chain` and `network`.
  PlacedCosts(const ChainCosts& chain, const Network& network, Placement placement,
              const std::vector<double>& speed);

  [[nodiscard]] const ChainCosts& chain() const { return chain_; }
  [[nodiscard]] const Network& network() const { return network_; }
  [[nodiscard]] const Placement& placement() const { return placement_; }
  [[nodiscard]] int stages() const { return placement_.stages(); }
  [[nodiscard]] const std::vector<double>& speed() const { return speed_; }
  [[nodiscard]] double speed_of(Rank rank) const { return speed_.empty() ? 1 : speed_[rank.index()]; }
  /// All-reduce of the parameters of layers [first, last) over the replicas of `stage`.
  [[nodiscard]] double reduction(int stage, int first, int last) const {
    return reductions_[to_size(stage)].seconds(chain_.parameters(first, last));
  }
  /// The part of `bound` that is of that stage and of the boundary into it.
  [[nodiscard]] double part(const StepBound& bound, int stage, int first, int last, Recompute setting) const {
    const StepBound::Stage& s = bound.stages[to_size(stage)];
    double seconds = s.forwards(setting) * chain_.forward(first, last) +
                     s.trained_forward * chain_.trained_forward(first, last) +
                     s.backward_input * chain_.backward_input(first, last) +
                     s.backward_weight * chain_.backward_weight(first, last) +
                     s.step * chain_.step(first, last) + s.latency +
                     s.seconds_per_byte * static_cast<double>(chain_.boundary(first).value);
    // What is frozen is not reduced.
    if (s.reductions > 0 && chain_.parameters(first, last) > Bytes{})
      seconds += s.reductions * reduction(stage, first, last);
    return seconds;
  }
  [[nodiscard]] double value(const StepBound& bound, const std::vector<int>& cuts,
                             const RecomputeSettings& settings) const;

 private:
  const ChainCosts& chain_;
  const Network& network_;
  Placement placement_;
  std::vector<double> speed_;
  std::vector<AllReduceTimes> reductions_;  // per stage
};

/// A critical path as a bound. `payloads` says what a loss report and tied weights have.
[[nodiscard]] StepBound bound_of(const CriticalPath& path, const PlacedCosts& costs,
                                 const CostTable& payloads);

/// Whether a backward of a program's ranks is in two parts.
[[nodiscard]] bool splits_backwards(const std::vector<std::vector<Action>>& ranks);

/// The bounds that hold for any order. `split` says whether a backward may be in two parts. `goes_on`: of the time
/// from one step to the next, where ranks go on without waiting for each other. What begins and ends with the first
/// stage bounds that too; the head of a rank that does all it has may lie beside the step before.
struct OrderFreeBounds {
  /// Of ranks that hold the same stages there is one, the busiest.
  struct Work {
    Rank rank;
    StepBound to_tail, to_end;
  };
  std::vector<Work> work;
  StepBound chain;  ///< one micro-batch

  /// Of the ranks that hold a stage, the bound of the one with most forwards there; null: none has any to do.
  [[nodiscard]] const StepBound* busiest(std::size_t stage, StepBound Work::*bound) const;
};
/// `frozen`: some first layers are, so that no gradient need come back to the first stage: it goes on with the next
/// step's forwards, and what bounds the time from one step to the next begins at the first layer that is not.
[[nodiscard]] OrderFreeBounds order_free_bounds(const PlacedCosts& costs, int micro_batches, bool split,
                                                bool goes_on, bool frozen = false);

}  // namespace stagecraft::planning
