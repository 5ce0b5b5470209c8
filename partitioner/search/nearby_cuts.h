#pragma once

// Without a flush a plan is chosen by its bottleneck, which a dynamic program knows. The simulated step knows more: of
// replicas that take turns, and of links that several ranks share. So the cuts near those chosen are looked at.

#include "partitioner/search/layout.h"
#include "partitioner/search/planner.h"
#include "partitioner/search/planning_run.h"

#include <cstdint>

namespace stagecraft::planning {

/// The candidate, or one of the same layout whose step is shorter, or as short with less memory: runs of its cuts shift
/// by a layer, one after another, while that helps and the budget lasts. `left` counts down: nanoseconds, about.
/// `pricer` may be of any plan.
[[nodiscard]] PlanCandidate with_nearby_cuts(const PlanningRun& run, const Layout& layout,
                                             PlanCandidate candidate, PlanPricer& pricer, std::int64_t& left);

}  // namespace stagecraft::planning
