#pragma once

// Which stages of a plan hold weights that several layers share.

#include "partitioner/plan/plan.h"
#include "partitioner/plan/profile.h"

#include <vector>

namespace stagecraft {

/// Of each tied weight the stages of its layers, ascending, as often as they hold it. `cuts` are the first layers of
/// stages 1, 2, ...
[[nodiscard]] std::vector<std::vector<StageId>> tie_holders(const std::vector<TiedWeight>& ties,
                                                            const std::vector<int>& cuts);

/// Sets the plan's ties, and what its costs say of them, where it has costs. `ties` are of the plan's model.
void set_ties(Plan& plan, const std::vector<TiedWeight>& ties);

}  // namespace stagecraft
