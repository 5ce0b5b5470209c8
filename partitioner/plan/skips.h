#pragma once

// What of a plan goes directly between stages that are no neighbours.

#include "partitioner/plan/plan.h"

#include <vector>

namespace stagecraft {

/// Sets the plan's skips, and what its costs say of them, where it has costs: what stages receive and send from
/// and to their neighbours is without it. `links` are all between the plan's stages, neighbours included.
///
/// Peaks while a stage computes stay those of stages through which all values go: an upper bound.
void set_skips(Plan& plan, const std::vector<SkipCosts>& links);

}  // namespace stagecraft
