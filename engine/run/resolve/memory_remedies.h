#pragma once

// What would fit where a run does not: the same plan otherwise, proved again with its own costs.

#include "engine/run/resolve/setup.h"

#include <functional>
#include <string>
#include <vector>

namespace stagecraft {

/// One line each: recomputation, another schedule, the largest smaller micro-batch. `fits` judges the peak
/// bytes per rank. Empty where the plan has no costs, or nothing of these fits.
[[nodiscard]] std::vector<std::string> memory_remedies(
    const RunSetup& setup, const std::function<bool(const std::vector<Bytes>&)>& fits);

}  // namespace stagecraft
