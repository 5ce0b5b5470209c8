#pragma once

#include "stagecraft/engine/optimizers/optimizer.h"

namespace stagecraft {

/// PyTorch's SGD, through LibTorch's fused kernel. Keeps the momentum.
struct SgdConfig {
  double lr = 0.01, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
void describe(Fields& f, SgdConfig& c);
[[nodiscard]] OptimizerPtr make_optimizer(const SgdConfig& config);

}  // namespace stagecraft
