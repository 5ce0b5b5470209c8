#pragma once

#include "engine/optimizers/optimizer.h"

#include <vector>

namespace stagecraft {

/// PyTorch's NAdam (Dozat, ICLR'16 workshop): Adam with Nesterov momentum, whose look-ahead grows as
/// beta1 * (1 - 0.96^(t * momentum_decay) / 2). Keeps two moments. PyTorch's running product of those factors
/// follows from the number of updates alone, so it is no state here.
struct NAdamConfig {
  double lr = 2e-3;
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum_decay = 4e-3;
  bool decoupled_weight_decay = false;
};
void describe(Fields& f, NAdamConfig& c);
[[nodiscard]] OptimizerPtr make_optimizer(const NAdamConfig& config);

}  // namespace stagecraft
