#pragma once

// What a run works on: the data set, the model, the loss and the optimizer, made from its config and checked
// against each other. The same on every rank; read-only afterwards, so ranks that are threads share one.

#include "engine/config/config.h"
#include "engine/optimizers/model_optimizer.h"
#include "models/data/dataset.h"
#include "models/losses/loss.h"
#include "models/model.h"
#include "schedules/program/segments.h"

#include <memory>
#include <string>

namespace stagecraft {

struct TrainingInputs {
  std::unique_ptr<Dataset> data;
  Model model;
  std::shared_ptr<const Loss> loss;
  ModelOptimizerPtr optimizer{};
};

/// Throws InputError (`file` names the config): missing or broken data, impossible sizes, a loss that does
/// not fit the data, a batch larger than the data, a data set of the program's own whose first batches are not
/// what it promised.
[[nodiscard]] TrainingInputs open_training_inputs(const RunConfig& config, const std::string& file);
/// The same of a data set that is open already, or told of (data_facts.h).
[[nodiscard]] TrainingInputs make_training_inputs(const RunConfig& config, const std::string& file,
                                                  std::unique_ptr<Dataset> data);

/// The arithmetic of the run: its steps follow from the data's length where the config says epochs. Throws
/// InputError (`file` names the config) where they are more than any run's.
[[nodiscard]] RunShape run_shape(const RunConfig& config, const Dataset& data, bool synchronous,
                                 const std::string& file = "");

/// Tokens of a sample, on the mean over an epoch; 0 where inputs are no tokens.
[[nodiscard]] double tokens_per_sample(const TrainingInputs& inputs);

[[nodiscard]] Precision precision_of(const RunConfig& config);

}  // namespace stagecraft
