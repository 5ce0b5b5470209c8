#pragma once

#include "engine/optimizers/optimizer.h"

#include <vector>

namespace stagecraft {

/// PyTorch's Adam and AdamW, through LibTorch's fused kernels. Both keep two moments.
struct AdamParameters {
  double lr = 1e-3;
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
};
void describe(Fields& f, AdamParameters& c);
struct AdamConfig : AdamParameters {};
struct AdamWConfig : AdamParameters {
  AdamWConfig() { weight_decay = 0.01; }
};
[[nodiscard]] OptimizerPtr make_optimizer(const AdamConfig& config);
[[nodiscard]] OptimizerPtr make_optimizer(const AdamWConfig& config);

// What other optimizers share with it.

/// Its state of a parameter: exp_avg, exp_avg_sq.
[[nodiscard]] std::vector<StateSpec> adam_state(const ParameterSite& parameter);
/// Its update, of parameters with that state; rate and decay are the update's.
void adam_update(const OptimizerUpdate& update, const AdamParameters& parameters, bool decoupled);
/// Two decays of moments.
[[nodiscard]] bool is_betas(const std::vector<double>& betas);
inline constexpr const char* kBetasExpected = "expected two numbers, each at least 0 and below 1";

}  // namespace stagecraft
