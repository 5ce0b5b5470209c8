#pragma once

// The cuts of smallest bottleneck for a placement: of any stage's compute, with the forwards it repeats (of
// one with replicas over their number, its all-reduce shared by the step's micro-batches) and of any transfer
// between ranks, as occupancy.h has them. Exact; among equals the smallest sum of squares of stage times (the
// most even), then the earliest cuts.

#include "partitioner/plan/profile.h"
#include "partitioner/search/stage_settings.h"

#include <optional>
#include <vector>

namespace stagecraft::planning {

/// Every stage has its least setting. Empty when no partition fits.
[[nodiscard]] std::optional<std::vector<int>> min_max_cuts(const Measurement& measurement,
                                                           const Network& network, const Placement& placement,
                                                           const std::vector<double>& speed,
                                                           const StageSettings& settings,
                                                           int micro_batches = 1);

/// Cuts whose bottleneck is the smallest there is: all, or `most` of them at random.
[[nodiscard]] std::vector<std::vector<int>> min_max_ties(const Measurement& measurement,
                                                         const Network& network, const Placement& placement,
                                                         const std::vector<double>& speed,
                                                         const StageSettings& settings, int micro_batches,
                                                         std::size_t most);

}  // namespace stagecraft::planning
