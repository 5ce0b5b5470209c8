#pragma once

#include "engine/optimizers/optimizer.h"

namespace stagecraft {

/// PyTorch's SGD, through LibTorch's fused kernel. Keeps the momentum.
struct SgdConfig {
  double lr = 0.01, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
/// The same with decoupled decay (Loshchilov, Hutter, ICLR'19, algorithm 1): weights shrink by
/// lr * weight_decay, and no gradient and no momentum knows of it.
struct SgdWConfig : SgdConfig {};
void describe(Fields& f, SgdConfig& c);
void describe(Fields& f, SgdWConfig& c);
[[nodiscard]] OptimizerPtr make_optimizer(const SgdConfig& config);
[[nodiscard]] OptimizerPtr make_optimizer(const SgdWConfig& config);

}  // namespace stagecraft
