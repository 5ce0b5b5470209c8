#pragma once

#include "engine/optimizers/optimizer.h"

#include <vector>

namespace stagecraft {

/// Lion (Chen et al., arXiv 2302.06675, program 1) with DeepSpeed's names and defaults: the sign of an
/// interpolated momentum. Keeps the momentum.
struct LionConfig {
  double lr = 1e-3;
  std::vector<double> betas{0.9, 0.99};
  double weight_decay = 0;
};
void describe(Fields& f, LionConfig& c);
[[nodiscard]] OptimizerPtr make_optimizer(const LionConfig& config);

}  // namespace stagecraft
