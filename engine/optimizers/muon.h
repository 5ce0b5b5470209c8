#pragma once

#include "engine/optimizers/optimizer.h"

#include <string>
#include <vector>

namespace stagecraft {

/// PyTorch's Muon (Jordan et al., kellerjordan.github.io/posts/muon; Liu et al., arXiv 2502.16982): the
/// momentum of a hidden matrix, made nearly orthogonal by Newton-Schulz iterations. All other parameters
/// (vectors, convolutions, those of the model's first and last layer with a matrix, and those that
/// `adam_parameters` names) are AdamW's. So a matrix keeps one moment, everything else two.
struct MuonConfig {
  double lr = 1e-3;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  std::vector<double> ns_coefficients{3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  int ns_steps = 5;
  std::string adjust_lr_fn = "original";
  std::string ns_dtype = "bfloat16";
  std::vector<std::string> adam_parameters{};
  double adam_lr = 0;  ///< 0: lr
  std::vector<double> adam_betas{0.9, 0.999};
  double adam_eps = 1e-8;
  double adam_weight_decay = 0.01;
};
void describe(Fields& f, MuonConfig& c);
[[nodiscard]] OptimizerPtr make_optimizer(const MuonConfig& config);

}  // namespace stagecraft
