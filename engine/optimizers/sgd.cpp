#include "engine/optimizers/sgd.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_sgd.h>

namespace stagecraft {
namespace {

class Sgd final : public Optimizer {
 public:
  Sgd(const SgdConfig& config, bool decoupled) : config_(config), decoupled_(decoupled) {}

  double learning_rate() const override { return config_.lr; }
  bool is_elementwise() const override { return true; }
  double weight_decay(const ParameterSite& /*parameter*/) const override { return config_.weight_decay; }
  std::vector<StateSpec> state_of(const ParameterSite& parameter) const override {
    if (config_.momentum == 0) return {};
    return {{"momentum_buffer", parameter.shape}};
  }
  void update(const OptimizerUpdate& u) const override {
    if (decoupled_ && u.weight_decay != 0) {
      at::_foreach_mul_(u.parameters, 1 - u.learning_rate * u.weight_decay);
    }
    const bool first = u.earlier_steps == 0;  // the momentum buffer starts as the gradient, undampened
    at::_fused_sgd_(u.parameters, u.gradients, u.state.empty() ? Tensors{} : u.state[0],
                    decoupled_ ? 0 : u.weight_decay, config_.momentum, u.learning_rate, config_.dampening,
                    config_.nesterov, /*maximize=*/false, first);
  }

 private:
  SgdConfig config_;
  bool decoupled_;
};

void describe_sgd(Fields& f, SgdConfig& c, const char* decay) {
  f.optional("lr", c.lr, "learning rate", json::at_least(0));
  f.optional("momentum", c.momentum, "0: none", json::from_up_to(0, 1));
  f.optional("dampening", c.dampening, "of the momentum", json::between(0, 1));
  f.optional("weight_decay", c.weight_decay, decay, json::at_least(0));
  f.optional("nesterov", c.nesterov, "Nesterov momentum");
  f.require(!c.nesterov || (c.momentum > 0 && c.dampening == 0), "nesterov",
            "Nesterov momentum needs momentum above 0 and dampening 0");
}

}  // namespace

void describe(Fields& f, SgdConfig& c) { describe_sgd(f, c, "added to the gradient"); }
void describe(Fields& f, SgdWConfig& c) { describe_sgd(f, c, "decoupled: times lr, off the weights"); }

OptimizerPtr make_optimizer(const SgdConfig& config) { return std::make_shared<Sgd>(config, false); }
OptimizerPtr make_optimizer(const SgdWConfig& config) { return std::make_shared<Sgd>(config, true); }

}  // namespace stagecraft
