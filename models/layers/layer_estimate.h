#pragma once

// What a layer would take, said from its graph alone, without running it: for models larger than memory.

#include "base/ids.h"

#include <vector>

namespace stagecraft {

/// One operator's work: what a device's two rates are applied to.
struct OperatorWork {
  double multiply_adds = 0;
  double bytes = 0;  ///< of what it reads and writes
};

/// What a layer does with one tensor that it reads, where several go on.
struct InputUse {
  bool kept = false, kept_for_weight = false;
  /// Of its gradient: the layer makes it; or it is that of the output `gradient_of`, which goes through.
  bool makes_gradient = false;
  int gradient_of = -1;
};
/// The same of one that goes on behind it.
struct OutputUse {
  Bytes bytes;
  int same_as = -1;  ///< the input whose memory it has; -1: memory of its own
  bool has_gradient = true;
  bool kept = false, kept_for_weight = false, gradient_kept = false;
};

/// For one micro-batch. Bytes mean what they mean in a profile (partitioner/plan/profile.h).
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
  /// Of every tensor before and behind it, in place of the flags above where several go on.
  std::vector<InputUse> inputs;
  std::vector<OutputUse> outputs;
};

}  // namespace stagecraft
