#pragma once

// What of a plan's costs the model knows exactly. A plan is a file that people edit, and memory is proved from its
// costs: a proof from wrong bytes is none.

#include "engine/optimizers/model_optimizer.h"
#include "models/model.h"
#include "partitioner/plan/plan.h"

#include <string>

namespace stagecraft {

/// Throws InputError (`file` is the plan's) where a stage's weights, what it reads or what it sends on have other bytes in the
/// plan's costs than in the model, whose layers the plan has. Does nothing without costs.
void check_known_costs(const Plan& plan, const std::string& file, const Model& model);

/// Puts the state of the run's optimizer in the place of that of the one that the plan was made with. Returns whether
/// it is another; the plan's prediction is gone then.
bool follow_optimizer(Plan& plan, const Model& model, const ModelOptimizer& optimizer);

}  // namespace stagecraft
