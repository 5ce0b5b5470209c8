#pragma once

// What a layer would take, said from its graph alone, without running it: for models larger than memory.

#include "stagecraft/base/ids.h"

#include <vector>

namespace stagecraft {

/// One operator's work: what a device's two rates are applied to.
struct OperatorWork {
  double multiply_adds = 0;
  double bytes = 0;  ///< of what it reads and writes
};

/// For one micro-batch. Bytes mean what they mean in a profile (partitioner/profile.h).
///
/// What is kept is exact. Transients count results at their declared types from the step that makes them to
/// the one that reads them last. They take a layer's input and output to be held by others throughout its
/// backward, which is an upper bound, and leave out what kernels allocate inside, which is small.
struct LayerEstimate {
  std::vector<OperatorWork> forward, backward_input, backward_weight;
  Bytes kept_for_input, kept_for_weight;
  bool keeps_input = false, keeps_output = false, output_is_input = false;
  bool weight_half_keeps_input = false, weight_half_keeps_output = false, weight_half_keeps_gradient = false;
  Bytes forward_transient, backward_transient, backward_input_transient, backward_weight_transient;
};

}  // namespace stagecraft
