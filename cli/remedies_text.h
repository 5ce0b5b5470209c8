#pragma once

// What would fit where nothing does, in words: options to give, or what to buy.

#include "partitioner/advice/remedies.h"

#include <string>
#include <vector>

namespace stagecraft::cli {

/// Lines to follow a refusal of all `requests`; empty where nothing was found.
[[nodiscard]] std::string remedies_text(const Profile& profile, const Cluster& cluster,
                                        const std::vector<PlanRequest>& requests);

}  // namespace stagecraft::cli
