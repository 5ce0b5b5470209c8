#pragma once

// The memory of a stage between whose layers several tensors go on (models/bundle.h), by the memory model of
// stage_walk.h, followed storage by storage. Chains have a faster way to the same numbers there.
//
// Three things are of bundles alone. What a stage receives is one tensor, in its slot, and its values are
// views of it. What it sends is a packed copy: `output` counts that, and values that layers keep besides
// count as kept. A value that goes through a layer keeps its memory; one that passes a layer by keeps its
// gradient's too.

#include "stagecraft/partitioner/profile.h"

namespace stagecraft {

/// What of a stage's costs is activation memory.
struct ActivationBytes {
  Bytes kept_for_input, kept_for_weight;
  bool output_kept = false;
  Bytes forward_peak, unkept_forward_peak, backward_peak, backward_input_peak, backward_weight_peak;
};

/// Of layers [first, last), at least one.
[[nodiscard]] ActivationBytes activation_bytes(const Measurement& measurement, int first, int last);

}  // namespace stagecraft
