#pragma once

#include "engine/config/config.h"
#include "engine/run/resolve/plan_request.h"
#include "models/model.h"
#include "partitioner/plan/plan.h"

#include <optional>
#include <string>

namespace stagecraft {

/// Throws InputError where `plan` is not one for this run: of another model, dtype, micro-batch size or number of
/// ranks, or against a key of /pipeline. `plan_file` and `file` (the config's) are named.
void check_plan(const Plan& plan, const std::string& plan_file, const RunConfig& config,
                const std::string& file, const Model& model, const std::optional<World>& world);

}  // namespace stagecraft
