#pragma once

#include "engine/optimizers/optimizer.h"

#include <vector>

namespace stagecraft {

/// PyTorch's Adafactor (Shazeer, Stern, ICML'18): the second moment of a matrix as one row and one column, so
/// that its state is next to nothing. Of vectors and scalars it keeps the whole moment. The rate is the
/// largest relative step: min(lr, 1 / sqrt(t)) times the root mean square of the parameter.
struct AdafactorConfig {
  double lr = 1e-2;
  double beta2_decay = -0.8;
  std::vector<double> eps{0, 1e-3};  ///< the first 0: the dtype's epsilon (PyTorch's None)
  double d = 1;
  double weight_decay = 0;
};
void describe(Fields& f, AdafactorConfig& c);
[[nodiscard]] OptimizerPtr make_optimizer(const AdafactorConfig& config);

}  // namespace stagecraft
