#include "stagecraft/engine/optimizers/optimizer.h"

#include "stagecraft/base/error.h"
#include "stagecraft/engine/optimizers/adam.h"
#include "stagecraft/engine/optimizers/sgd.h"

#include <ATen/ops/zeros_like.h>

namespace stagecraft {

void optimizer_step(const Optimizer& optimizer, double learning_rate, const Tensors& parameters,
                    const Tensors& gradients, const std::vector<bool>& decays, OptimizerState& state) {
  STAGECRAFT_CHECK(parameters.size() == gradients.size() && parameters.size() == decays.size(),
                   "one gradient and one decay flag per parameter");
  state.tensors.resize(parameters.size());
  const std::vector<std::string> names = optimizer.state_names();
  for (const bool decay : {true, false}) {
    OptimizerUpdate update{.learning_rate = learning_rate,
                           .decays = decay,
                           .earlier_steps = state.steps,
                           .state = std::vector<Tensors>(names.size())};
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (decays[i] != decay) continue;
      update.parameters.push_back(parameters[i]);
      update.gradients.push_back(gradients[i]);
      for (std::size_t k = 0; k < names.size(); ++k) {
        at::Tensor& tensor = state.tensors[i][names[k]];
        if (!tensor.defined()) tensor = at::zeros_like(parameters[i]);
        update.state[k].push_back(tensor);
      }
    }
    if (!update.parameters.empty()) optimizer.update(update);
  }
  ++state.steps;
}

Registry<OptimizerKind>& OptimizerKind::registry() {
  // Never destroyed, and in the schema's order.
  static auto& all = *new Registry<OptimizerKind>([](Registry<OptimizerKind>& added) {
    const auto make = [](const auto& settings, Site) { return make_optimizer(settings); };
    added.add<SgdConfig>("SGD", make);
    added.add<AdamConfig>("Adam", make);
    added.add<AdamWConfig>("AdamW", make);
  });
  return all;
}

void describe(Fields& f, OptimizerConfig& c) { f.registered("type", c.type, "SGD, Adam or AdamW", "params"); }

}  // namespace stagecraft
