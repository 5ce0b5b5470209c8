#pragma once

// A transfer's name as the integer MPI matches by. From the lowest bit:
//
//   kind 2 | index 3 | from stage 14 | micro-batch: the rest, at most 12
//
// 31 bits in all where MPI_TAG_UB allows it (Open MPI); a smaller bound costs micro-batch bits. The
// micro-batch is taken modulo what fits: transfers of one channel that differ only by a multiple of that
// never overlap out of order, and MPI matches equal tags in the order they were begun.
//
// The stage that a transfer goes to follows from the index: that of an activation or gradient is the number of
// stages that it passes, which is 0 between neighbours. From 7 on the index is 7, and the 14 bits hold both stages,
// 7 bits each. A loss goes to stage 0. Sums of a stage's replicas, gradients from a stage to itself, are a kind of
// their own, with the sum's phase as the index.

#include "schedules/program/action.h"

namespace stagecraft::transport {

class MpiTagLayout {
 public:
  static constexpr int kKindBits = 2;
  static constexpr int kIndexBits = 3;
  static constexpr int kStageBits = 14;
  static constexpr int kFar = (1 << kIndexBits) - 1;  ///< the index of what passes so many stages or more
  static constexpr int kMostMicroBatchBits = 12;
  static constexpr int kLeastMicroBatchBits = 6;

  /// `upper_bound`: MPI_TAG_UB. Throws InputError when it is too small for any layout.
  explicit MpiTagLayout(int upper_bound);

  /// Throws InputError when a stage or index does not fit. Activations and gradients have one tensor.
  [[nodiscard]] int encode(const Tag& tag) const;
  [[nodiscard]] int micro_batch_bits() const { return micro_batch_bits_; }

 private:
  int micro_batch_bits_;
};

}  // namespace stagecraft::transport
