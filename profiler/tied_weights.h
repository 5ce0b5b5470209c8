#pragma once

// What profiles and plans know of the weights that several of a model's layers hold.

#include "models/model.h"
#include "partitioner/plan/profile.h"

#include <vector>

namespace stagecraft {

/// In the order of Model::ties.
[[nodiscard]] std::vector<TiedWeight> tied_weights(const Model& model);

}  // namespace stagecraft
