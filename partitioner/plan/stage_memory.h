#pragma once

// The memory a stage needs under a schedule, before any program exists: what makes a cut feasible or not
// while the planner searches. The proof of the finished plan (schedules/checker/checker.h) has the last word.

#include "partitioner/plan/profile.h"
#include "schedules/memory/stage_counts.h"

#include <vector>

namespace stagecraft {

/// What a stage's memory is made of, so that it can be had for any StageCounts.
struct StageMemory {
  Bytes fixed;         ///< gradients, optimizer state, buffers
  Bytes version;       ///< one version of the weights
  Bytes input;         ///< kept of one in flight in any case
  Bytes activations;   ///< kept of one whose forward is not recomputed, or is already
  Bytes unweighted;    ///< kept of one whose weight part is still to come
  Bytes forward_peak;  ///< worst moment of a forward that keeps its activations, or of a recompute
  Bytes unkept_peak;   ///< and of one that keeps nothing
  /// Worst moment of a backward or its input half, whichever is less; the gradient received included.
  Bytes backward_peak;

  bool frozen = false;  ///< nothing is kept, whatever is in flight

  StageMemory(const StageCosts& costs, bool last_stage, bool frozen_stage = false);
  /// Peak bytes of a rank that holds this stage alone. Never more than the proof will say: transfers that may
  /// be under way at that moment are left to the proof.
  [[nodiscard]] Bytes peak(const StageCounts& counts) const;
  /// The part of it that is there all the time: true also where a neighbouring stage is on the same rank, and
  /// activations and gradients are handed over.
  [[nodiscard]] Bytes always(const StageCounts& counts) const;
};

/// The memory of every possible stage of a chain, made once and looked up by the search.
class StageMemoryTable {
 public:
  StageMemoryTable(const Measurement& measurement, double optimizer_bytes_per_parameter_byte);
  [[nodiscard]] const StageMemory& at(int first, int last) const {
    return by_first_[to_size(first)][to_size(last - first - 1)];
  }

 private:
  std::vector<std::vector<StageMemory>> by_first_;
};

}  // namespace stagecraft
