#pragma once

// An optimizer at work on a model: its config's parameter groups resolved for every parameter, the state that
// each has, and the average of the weights. State is per layer and travels with the layer, so that a
// checkpoint does not know about stages.

#include "stagecraft/base/ids.h"
#include "stagecraft/engine/optimizers/optimizer_config.h"
#include "stagecraft/models/model.h"

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

/// The name of the averaged weights among a parameter's state (OptimizerConfig::ema_decay).
inline constexpr const char* kAveragedWeights = "ema";

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

  /// One update of one layer, in place. `learning_rate` is the schedule's. A parameter i with `received[i]`
  /// false had no gradient in this step: it stays as it is, as in PyTorch, where it has none. State tensors
  /// are made on first use.
  void step(int layer, double learning_rate, const Tensors& parameters, const Tensors& gradients,
            const std::vector<bool>& received, OptimizerState& state) const;

 private:
  /// What follows from the config of one parameter.
  struct Parameter {
    ParameterSite site;
    double rate_factor = 1;  ///< of the schedule's rate
    double weight_decay = 0;
    std::vector<StateSpec> state;   ///< the optimizer's
    std::vector<StateSpec> kept{};  ///< and the average
  };
  /// Those that are updated together: equal factor and decay, and states of the same names.
  using Together = std::vector<std::size_t>;
  struct Layer {
    std::vector<Parameter> parameters;
    std::vector<Together> groups;
  };

  void update(const Layer& layer, const Together& group, double learning_rate, const Tensors& parameters,
              const Tensors& gradients, const std::vector<bool>& received, OptimizerState& state) const;
  void average(const Tensors& parameters, OptimizerState& state) const;

  OptimizerPtr optimizer_;
  std::optional<double> ema_decay_;
  std::int64_t element_bytes_;
  std::vector<Layer> layers_;
};
using ModelOptimizerPtr = std::shared_ptr<const ModelOptimizer>;

}  // namespace stagecraft
