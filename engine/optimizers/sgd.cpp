#include "stagecraft/engine/optimizers/sgd.h"

#include <ATen/ops/_fused_sgd.h>

namespace stagecraft {
namespace {

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const SgdConfig& config) : config_(config) {}

  double learning_rate() const override { return config_.lr; }
  std::vector<std::string> state_names() const override {
    return config_.momentum == 0 ? std::vector<std::string>{} : std::vector<std::string>{"momentum_buffer"};
  }
  void update(const OptimizerUpdate& u) const override {
    const bool first = u.earlier_steps == 0;  // the momentum buffer starts as the gradient, undampened
    at::_fused_sgd_(u.parameters, u.gradients, u.state.empty() ? Tensors{} : u.state[0],
                    u.decays ? config_.weight_decay : 0, config_.momentum, u.learning_rate, config_.dampening,
                    config_.nesterov, /*maximize=*/false, first);
  }

 private:
  SgdConfig config_;
};

}  // namespace

void describe(Fields& f, SgdConfig& c) {
  f.optional("lr", c.lr, "learning rate", json::at_least(0));
  f.optional("momentum", c.momentum, "0: none", json::from_up_to(0, 1));
  f.optional("dampening", c.dampening, "of the momentum", json::between(0, 1));
  f.optional("weight_decay", c.weight_decay, "added to the gradient", json::at_least(0));
  f.optional("nesterov", c.nesterov, "Nesterov momentum");
  f.require(!c.nesterov || (c.momentum > 0 && c.dampening == 0), "nesterov",
            "Nesterov momentum needs momentum above 0 and dampening 0");
}

OptimizerPtr make_optimizer(const SgdConfig& config) { return std::make_shared<Sgd>(config); }

}  // namespace stagecraft
