#include "engine/optimizers/lion.h"

#include "engine/optimizers/adam.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sign.h>

namespace stagecraft {
namespace {

class Lion final : public Optimizer {
 public:
  explicit Lion(const LionConfig& config) : config_(config) {}

  double learning_rate() const override { return config_.lr; }
  bool is_elementwise() const override { return true; }
  double weight_decay(const ParameterSite& /*parameter*/) const override { return config_.weight_decay; }
  std::vector<StateSpec> state_of(const ParameterSite& parameter) const override {
    return {{"exp_avg", parameter.shape}};
  }
  std::int64_t workspace_bytes(const std::vector<ParameterSite>& together,
                               std::int64_t element_bytes) const override {
    std::int64_t elements = 0;
    for (const ParameterSite& parameter : together) elements += parameter.elements();
    return elements * element_bytes;
  }
  void update(const OptimizerUpdate& u) const override {
    if (u.weight_decay != 0) at::_foreach_mul_(u.parameters, 1 - u.learning_rate * u.weight_decay);
    const Tensors signs = at::_foreach_mul(u.state[0], config_.betas[0]);
    at::_foreach_add_(signs, u.gradients, 1 - config_.betas[0]);
    at::_foreach_sign_(signs);
    at::_foreach_add_(u.parameters, signs, -u.learning_rate);
    at::_foreach_mul_(u.state[0], config_.betas[1]);
    at::_foreach_add_(u.state[0], u.gradients, 1 - config_.betas[1]);
  }

 private:
  LionConfig config_;
};

}  // namespace

void describe(Fields& f, LionConfig& c) {
  f.optional("lr", c.lr, "learning rate", json::at_least(0));
  f.optional("betas", c.betas, "decay of the momentum in the update, and from step to step",
             json::at_least(2));
  f.optional("weight_decay", c.weight_decay, "decoupled", json::at_least(0));
  f.require(is_betas(c.betas), "betas", kBetasExpected);
}

OptimizerPtr make_optimizer(const LionConfig& config) { return std::make_shared<Lion>(config); }

}  // namespace stagecraft
