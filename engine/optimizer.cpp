#include "stagecraft/engine/optimizer.h"

#include "stagecraft/base/error.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

namespace stagecraft {
namespace {

/// The parameters of one fused call: those that share a weight decay.
struct ParameterGroup {
  Tensors parameters;
  Tensors gradients;
  std::vector<std::size_t> indices;
};

ParameterGroup select_group(const Tensors& parameters, const Tensors& gradients,
                            const std::vector<bool>& decays, bool decay) {
  ParameterGroup group;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (decays[i] != decay) continue;
    group.parameters.push_back(parameters[i]);
    group.gradients.push_back(gradients[i]);
    group.indices.push_back(i);
  }
  return group;
}

/// The group's state tensors of one name, made as zeros where they do not exist yet.
Tensors state_tensors(const ParameterGroup& group, const char* name, OptimizerState& state) {
  Tensors tensors;
  for (std::size_t k = 0; k < group.indices.size(); ++k) {
    at::Tensor& tensor = state.tensors[group.indices[k]][name];
    if (!tensor.defined()) tensor = at::zeros_like(group.parameters[k]);
    tensors.push_back(tensor);
  }
  return tensors;
}

void update(const SgdConfig& c, double lr, double decay, const ParameterGroup& group, OptimizerState& state) {
  const bool first = state.steps == 0;  // the momentum buffer starts as the gradient, undampened
  const Tensors momentum = c.momentum == 0 ? Tensors{} : state_tensors(group, "momentum_buffer", state);
  at::_fused_sgd_(group.parameters, group.gradients, momentum, decay, c.momentum, lr, c.dampening, c.nesterov,
                  /*maximize=*/false, first);
}

template <class AdamLike>
void update(const AdamLike& c, double lr, double decay, const ParameterGroup& group, OptimizerState& state) {
  const Tensors first_moments = state_tensors(group, "exp_avg", state);
  const Tensors second_moments = state_tensors(group, "exp_avg_sq", state);
  // The kernels read the update's number, from 1, out of one tensor per parameter; all may be the same one.
  const at::Tensor number = at::full({}, static_cast<double>(state.steps + 1),
                                     group.parameters.front().options().dtype(at::kFloat));
  const Tensors numbers(group.parameters.size(), number);
  constexpr auto fused = [](auto&&... arguments) {
    if constexpr (std::is_same_v<AdamLike, AdamConfig>) {
      at::_fused_adam_(arguments...);
    } else {
      at::_fused_adamw_(arguments...);
    }
  };
  fused(group.parameters, group.gradients, first_moments, second_moments, Tensors{}, numbers, lr, c.betas[0],
        c.betas[1], decay, c.eps, /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace

void optimizer_step(const OptimizerConfig& config, double learning_rate, const Tensors& parameters,
                    const Tensors& gradients, const std::vector<bool>& decays, OptimizerState& state) {
  STAGECRAFT_CHECK(parameters.size() == gradients.size() && parameters.size() == decays.size(),
                   "one gradient and one decay flag a parameter");
  state.tensors.resize(parameters.size());
  for (const bool decay : {true, false}) {
    const ParameterGroup group = select_group(parameters, gradients, decays, decay);
    if (group.parameters.empty()) continue;
    std::visit(
        [&](const auto& type) { update(type, learning_rate, decay ? type.weight_decay : 0, group, state); },
        config.type);
  }
  ++state.steps;
}

std::vector<std::string> optimizer_tensor_names(const OptimizerConfig& config) {
  const auto* sgd = std::get_if<SgdConfig>(&config.type);
  if (sgd == nullptr) return {"exp_avg", "exp_avg_sq"};
  return sgd->momentum == 0 ? std::vector<std::string>{} : std::vector<std::string>{"momentum_buffer"};
}

double optimizer_bytes_per_parameter_byte(const OptimizerConfig& config) {
  return static_cast<double>(optimizer_tensor_names(config).size());
}

}  // namespace stagecraft
