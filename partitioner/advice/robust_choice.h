#pragma once

// Choosing among a planner's plans by how they take to times that vary.

#include "partitioner/search/planner.h"

namespace stagecraft {

/// Jitters the best plan and its first runners-up, `most` in all; with p95 the one of them whose p95 is least
/// becomes the best.
void add_jitter(PlanResult& result, const Jitter& jitter, std::size_t most, ChooseBy by);

}  // namespace stagecraft
