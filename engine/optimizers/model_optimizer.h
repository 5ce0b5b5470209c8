#pragma once

// An optimizer at work on a model: its config's parameter groups resolved for every parameter, the state that
// each has, and the average of the weights. State is per layer and travels with the layer, so that a
// checkpoint does not know about stages.

#include "base/ids.h"
#include "engine/optimizers/optimizer_config.h"
#include "models/model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

/// Optimizer state of one layer: named tensors per parameter ("exp_avg" of parameter 0, ...), and how many
/// updates it has seen.
struct OptimizerState {
  std::vector<std::map<std::string, at::Tensor>> tensors;  ///< by parameter
  std::int64_t steps = 0;
};

/// What a step is told of its moment in the run. Staleness is counted in updates and comes from the program
/// (UpdateStaleness, schedules/rules/staleness.h).
struct UpdateMoment {
  double learning_rate = 0;        ///< the schedule's
  double gradients_staleness = 0;  ///< of what the gradients were computed with
  double weights_staleness = 0;    ///< that the weights made now will be read with
};

/// The name of the averaged weights among a parameter's state (OptimizerConfig::ema_decay).
inline constexpr const char* kAveragedWeights = "ema";
/// Likewise of how far the weights are written ahead (StalenessConfig::look_ahead).
inline constexpr const char* kLookAhead = "look_ahead";

/// Immutable; used by all ranks of a process at once.
class ModelOptimizer {
 public:
  /// Throws InputError with `place` (the config's /optimizer) for a group or a pattern that no parameter fits,
  /// and for a group's rate beside a rate of 0.
  ModelOptimizer(const OptimizerConfig& config, const Model& model, const InputPlace& place);

  /// What the settings say, before a schedule of learning rates and before groups.
  [[nodiscard]] double learning_rate() const { return optimizer_->learning_rate(); }
  [[nodiscard]] bool averages_weights() const { return ema_decay_.has_value(); }

  /// All tensors that there are of a parameter after the first update.
  [[nodiscard]] const std::vector<StateSpec>& state_of(int layer, std::size_t parameter) const;
  /// Of a layer, in the model's full precision.
  [[nodiscard]] Bytes state_bytes(int layer) const;
  /// Most bytes that step() of a layer holds above what is live before and stays (Optimizer::workspace_bytes).
  [[nodiscard]] Bytes workspace_bytes(int layer) const;
  /// State bytes per parameter byte, of the whole model: SGD 0 or 1 (momentum), Adam and AdamW 2.
  [[nodiscard]] double bytes_per_parameter_byte() const;

  /// One update of one layer, in place. A parameter i with `received[i]`
  /// false had no gradient in this step: it stays as it is, as in PyTorch, where it has none. State tensors
  /// are made on first use.
  void step(int layer, const UpdateMoment& moment, const Tensors& parameters, const Tensors& gradients,
            const std::vector<bool>& received, OptimizerState& state) const;

 private:
  /// What follows from the config of one parameter.
  struct Parameter {
    ParameterSite site;
    double rate_factor = 1;  ///< of the schedule's rate
    double weight_decay = 0;
    std::vector<StateSpec> state{};  ///< the optimizer's
    std::vector<StateSpec> kept{};   ///< and the average
    std::vector<std::int64_t> memory_order{};
  };
  /// Those that are updated together: equal factor and decay, and states of the same names.
  using Together = std::vector<std::size_t>;
  struct Layer {
    std::vector<Parameter> parameters;
    std::vector<Together> groups;
  };

  void update(const Layer& layer, const Together& group, const UpdateMoment& moment,
              const Tensors& parameters, const Tensors& gradients, const std::vector<bool>& received,
              OptimizerState& state) const;
  void average(const Tensors& parameters, OptimizerState& state) const;
  /// By what the rate of the layer's next update is multiplied.
  [[nodiscard]] double discount(const UpdateMoment& moment, const OptimizerState& state) const;

  std::string name_;
  OptimizerPtr optimizer_;
  std::optional<double> ema_decay_;
  StalenessConfig staleness_;
  std::int64_t element_bytes_;
  std::vector<Layer> layers_;
};
using ModelOptimizerPtr = std::shared_ptr<const ModelOptimizer>;

}  // namespace stagecraft
