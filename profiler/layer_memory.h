#pragma once

// Bytes of every row of a chain: one forward and one backward of a micro-batch on the chain's device, as its
// allocator counts them (memory_meter.h), told apart by storage. What the figures mean is said in partitioner/plan/profile.h and partitioner/plan/stage_walk.h.

#include "partitioner/plan/profile.h"
#include "profiler/chain.h"

#include <vector>

namespace stagecraft {

/// One LayerProfile a row, with names and bytes but no times; a layer that is left out has its name alone. The chain should have run a micro-batch before,
/// so that nothing is allocated for the first time. Requires the counting allocator to be installed.
[[nodiscard]] std::vector<LayerProfile> measure_memory(Chain& chain, const ChainInput& data);

}  // namespace stagecraft
