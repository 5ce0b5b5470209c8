#include "engine/optimizers/nadam.h"

#include "engine/optimizers/adam.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include <cmath>
#include <mutex>

namespace stagecraft {
namespace {

/// mu_1 * ... * mu_t, rounded to float after every factor, as PyTorch's tensor is. Threads: any.
class MuProducts {
 public:
  template <class Mu>
  double after(std::int64_t steps, const Mu& mu) {
    const std::lock_guard lock(mutex_);
    while (static_cast<std::int64_t>(products_.size()) <= steps) {
      const float factor = static_cast<float>(mu(static_cast<std::int64_t>(products_.size())));
      products_.push_back(products_.back() * factor);
    }
    return products_[static_cast<std::size_t>(steps)];
  }

 private:
  std::mutex mutex_;
  std::vector<float> products_{1};  // by number of updates
};

class NAdam final : public Optimizer {
 public:
  explicit NAdam(const NAdamConfig& config) : config_(config) {}

  double learning_rate() const override { return config_.lr; }
  bool is_elementwise() const override { return true; }
  double weight_decay(const ParameterSite& /*parameter*/) const override { return config_.weight_decay; }
  std::vector<StateSpec> state_of(const ParameterSite& parameter) const override {
    return adam_state(parameter);
  }
  std::int64_t workspace_bytes(const std::vector<ParameterSite>& together,
                               std::int64_t element_bytes) const override {
    std::int64_t elements = 0;
    for (const ParameterSite& parameter : together) elements += parameter.elements();
    const bool decays_gradient = config_.weight_decay != 0 && !config_.decoupled_weight_decay;
    return elements * element_bytes * (decays_gradient ? 2 : 1);
  }

  // torch/optim/nadam.py, _multi_tensor_nadam, operator by operator.
  void update(const OptimizerUpdate& u) const override {
    const auto step = static_cast<double>(u.earlier_steps + 1);
    Tensors gradients = u.gradients;
    if (u.weight_decay != 0 && config_.decoupled_weight_decay) {
      at::_foreach_mul_(u.parameters, 1 - u.learning_rate * u.weight_decay);
    } else if (u.weight_decay != 0) {
      gradients = at::_foreach_add(gradients, u.parameters, u.weight_decay);
    }
    at::_foreach_lerp_(u.state[0], gradients, 1 - config_.betas[0]);
    at::_foreach_mul_(u.state[1], config_.betas[1]);
    at::_foreach_addcmul_(u.state[1], gradients, gradients, 1 - config_.betas[1]);
    const Tensors denominators = at::_foreach_sqrt(u.state[1]);
    at::_foreach_div_(denominators, std::pow(1 - std::pow(config_.betas[1], step), 0.5));
    at::_foreach_add_(denominators, config_.eps);

    const double product = products_.after(u.earlier_steps + 1, [this](std::int64_t t) { return mu(t); });
    const double now = mu(u.earlier_steps + 1), next = mu(u.earlier_steps + 2);
    at::_foreach_addcdiv_(u.parameters, gradients, denominators,
                          -(u.learning_rate * (1 - now) / (1 - product)));
    at::_foreach_addcdiv_(u.parameters, u.state[0], denominators,
                          -(u.learning_rate * next / (1 - product * next)));
  }

 private:
  [[nodiscard]] double mu(std::int64_t step) const {
    return config_.betas[0] * (1 - 0.5 * std::pow(0.96, static_cast<double>(step) * config_.momentum_decay));
  }

  NAdamConfig config_;
  mutable MuProducts products_;
};

}  // namespace

void describe(Fields& f, NAdamConfig& c) {
  f.optional("lr", c.lr, "learning rate", json::at_least(0));
  f.optional("betas", c.betas, "decay of the first and second moment", json::at_least(2));
  f.optional("eps", c.eps, "added to the root of the second moment", json::above(0));
  f.optional("weight_decay", c.weight_decay, "added to the gradient, or decoupled", json::at_least(0));
  f.optional("momentum_decay", c.momentum_decay, "how fast the look-ahead grows", json::at_least(0));
  f.optional("decoupled_weight_decay", c.decoupled_weight_decay, "as AdamW's");
  f.require(is_betas(c.betas), "betas", kBetasExpected);
}

OptimizerPtr make_optimizer(const NAdamConfig& config) { return std::make_shared<NAdam>(config); }

}  // namespace stagecraft
