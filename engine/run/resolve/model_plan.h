#pragma once

// What the model knows of a plan better than the plan's file: a file that people edit, and memory is proved from its
// costs. A proof from wrong bytes is none.

#include "engine/run/resolve/training_inputs.h"
#include "partitioner/plan/plan.h"

#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// Throws InputError (`file` is the plan's) where a stage's weights, what it reads or what it sends on have other bytes in the
/// plan's costs than in the model, whose layers the plan has. Does nothing without costs.
void check_known_costs(const Plan& plan, const std::string& file, const Model& model);

/// Puts into `plan` what follows from the model and the config: which stages load, ties, what bypasses stages, the
/// state of the optimizer, whether steps agree on the norm. A prediction that this makes untrue is made again. Returns
/// notes for people. `source` names the plan, `file` the config; throws InputError for what the two cannot do
/// together, RefusedError where skips that the config asks for do not fit.
std::vector<std::string> follow_model(Plan& plan, const std::string& source, const RunConfig& config,
                                      const std::string& file, const TrainingInputs& inputs);

/// Whether each step agrees on the gradient's norm is the config's to say: puts it into `plan`.
void follow_gradient_norm(const RunConfig& config, Plan& plan);
[[nodiscard]] bool agrees_on_norm(const RunConfig& config, const std::string& schedule);

/// Layers [first, last) of each stage. A plan made from a profile counts the loss as a last layer; the model
/// does not.
[[nodiscard]] std::vector<std::pair<int, int>> stage_layers(const Plan& plan, const Model& model);

}  // namespace stagecraft
