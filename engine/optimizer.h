#pragma once

// Optimizers through LibTorch's fused kernels (at::_fused_sgd_, _fused_adam_, _fused_adamw_). State is per
// layer and travels with the layer, so that a checkpoint does not know about stages.

#include "stagecraft/engine/settings/optimizer_config.h"
#include "stagecraft/models/layer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace stagecraft {

/// Optimizer state of one layer: named tensors per parameter ("exp_avg" of parameter 0, ...), and how many
/// updates it has seen.
struct OptimizerState {
  std::vector<std::map<std::string, at::Tensor>> tensors;  ///< by parameter
  std::int64_t steps = 0;
};

/// One update of one layer, in place, with `learning_rate`. `decays[i]`: weight decay applies to parameter i.
/// State tensors are made on first use.
void optimizer_step(const OptimizerConfig& config, double learning_rate, const Tensors& parameters,
                    const Tensors& gradients, const std::vector<bool>& decays, OptimizerState& state);

/// The state tensors of every parameter once it was updated.
[[nodiscard]] std::vector<std::string> optimizer_tensor_names(const OptimizerConfig& config);
/// State bytes per parameter byte: SGD 0 or 1 (momentum), Adam and AdamW 2.
[[nodiscard]] double optimizer_bytes_per_parameter_byte(const OptimizerConfig& config);

}  // namespace stagecraft
