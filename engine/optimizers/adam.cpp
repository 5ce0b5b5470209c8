#include "engine/optimizers/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

namespace stagecraft {
namespace {

class Adam final : public Optimizer {
 public:
  Adam(const AdamParameters& config, bool decoupled) : config_(config), decoupled_(decoupled) {}

  double learning_rate() const override { return config_.lr; }
  bool is_elementwise() const override { return true; }
  double weight_decay(const ParameterSite& /*parameter*/) const override { return config_.weight_decay; }
  std::vector<StateSpec> state_of(const ParameterSite& parameter) const override {
    return adam_state(parameter);
  }
  void update(const OptimizerUpdate& u) const override { adam_update(u, config_, decoupled_); }

 private:
  AdamParameters config_;
  bool decoupled_;
};

}  // namespace

std::vector<StateSpec> adam_state(const ParameterSite& parameter) {
  return {{"exp_avg", parameter.shape}, {"exp_avg_sq", parameter.shape}};
}

void adam_update(const OptimizerUpdate& u, const AdamParameters& parameters, bool decoupled) {
  // The kernels read the update's number, from 1, out of one tensor per parameter; all may be the same one.
  const at::Tensor number = at::full({}, static_cast<double>(u.earlier_steps + 1),
                                     u.parameters.front().options().dtype(at::kFloat));
  const Tensors numbers(u.parameters.size(), number);
  const auto fused = [&](const auto& kernel) {
    kernel(u.parameters, u.gradients, u.state[0], u.state[1], Tensors{}, numbers, u.learning_rate,
           parameters.betas[0], parameters.betas[1], u.weight_decay, parameters.eps,
           /*amsgrad=*/false, /*maximize=*/false);
  };
  if (decoupled) {
    fused([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    fused([](auto&&... arguments) { at::_fused_adam_(arguments...); });
  }
}

bool is_betas(const std::vector<double>& betas) {
  return betas.size() == 2 && betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1;
}

void describe(Fields& f, AdamParameters& c) {
  f.optional("lr", c.lr, "learning rate", json::at_least(0));
  f.optional("betas", c.betas, "decay of the first and second moment", json::at_least(2));
  f.optional("eps", c.eps, "added to the root of the second moment", json::above(0));
  f.optional("weight_decay", c.weight_decay, "Adam: added to the gradient; AdamW: decoupled",
             json::at_least(0));
  f.require(is_betas(c.betas), "betas", kBetasExpected);
}

OptimizerPtr make_optimizer(const AdamConfig& config) { return std::make_shared<Adam>(config, false); }
OptimizerPtr make_optimizer(const AdamWConfig& config) { return std::make_shared<Adam>(config, true); }

}  // namespace stagecraft
