#include "engine/core/layer_state.h"

#include "base/error.h"
#include "engine/core/finite.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

void check_shapes(const Tensors& have, const Tensors& given, const std::string& layer, const char* what) {
  if (have.size() != given.size()) {
    throw InputError(
        fmt::format("layer {} has {} {}, the state has {}", layer, have.size(), what, given.size()));
  }
  for (std::size_t i = 0; i < have.size(); ++i) {
    if (!given[i].defined()) continue;
    if (have[i].sizes() != given[i].sizes()) {
      throw InputError(fmt::format("layer {}: {} {} has shape [{}], the state [{}]", layer, what, i,
                                   fmt::join(have[i].sizes(), ", "), fmt::join(given[i].sizes(), ", ")));
    }
  }
}

void check_optimizer_state(const std::map<std::string, at::Tensor>& tensors,
                           const std::vector<StateSpec>& specs, const std::string& layer) {
  for (const auto& [key, tensor] : tensors) {
    const auto spec = std::find_if(specs.begin(), specs.end(),
                                   [&key = key](const StateSpec& known) { return known.name == key; });
    if (spec == specs.end()) {
      throw InputError(fmt::format("layer {}: the optimizer keeps no \"{}\", the state has one", layer, key));
    }
    if (tensor.sizes() == spec->shape) continue;
    throw InputError(fmt::format("layer {}: optimizer tensor {} has shape [{}], the state [{}]", layer, key,
                                 fmt::join(spec->shape, ", "), fmt::join(tensor.sizes(), ", ")));
  }
}

}  // namespace

LayerState layer_state_of(Stage& stage, int layer, const Layer& its, bool brought) {
  LayerState state{stage.parameters(layer), stage.buffers(layer), stage.optimizer_state(layer)};
  for (at::Tensor& parameter : state.parameters) parameter = parameter.cpu();
  const std::vector<BufferSpec>& specs = its.buffers();
  for (std::size_t i = 0; i < state.buffers.size(); ++i) {
    state.buffers[i] = specs[i].brought && !brought ? at::Tensor() : state.buffers[i].cpu();
  }
  for (auto& tensors : state.optimizer.tensors) {
    for (auto& [key, tensor] : tensors) tensor = tensor.cpu();
  }
  return state;
}

void set_layer_state(Stage& stage, int layer, const Layer& its, const WorkerOptions& options,
                     LayerState state) {
  const c10::InferenceMode no_autograd;
  const c10::DeviceGuard on_device(options.device);
  const std::string& name = its.name();
  const Tensors& parameters = stage.parameters(layer);
  check_shapes(parameters, state.parameters, name, "parameters");
  check_shapes(stage.buffers(layer), state.buffers, name, "buffers");
  if (!state.optimizer.tensors.empty() && state.optimizer.tensors.size() != parameters.size()) {
    throw InputError(fmt::format("layer {} has {} parameters, its optimizer state {}", name,
                                 parameters.size(), state.optimizer.tensors.size()));
  }
  for (std::size_t i = 0; i < state.optimizer.tensors.size(); ++i) {
    check_optimizer_state(state.optimizer.tensors[i], options.optimizer->state_of(layer, i), name);
  }
  stage.set_parameters(layer, state.parameters);
  for (std::size_t i = 0; i < state.buffers.size(); ++i) {
    if (state.buffers[i].defined()) stage.buffers(layer)[i].copy_(state.buffers[i]);
  }
  // Copies, even on the CPU: the next step writes into them, and what was given may be a file's mapped pages.
  OptimizerState own;
  own.steps = state.optimizer.steps;
  for (const auto& tensors : state.optimizer.tensors) {
    auto& copies = own.tensors.emplace_back();
    for (const auto& [key, tensor] : tensors)
      copies[key] = tensor.to(options.device, /*non_blocking=*/false, /*copy=*/true);
  }
  stage.optimizer_state(layer) = std::move(own);
}

std::string not_finite_in(Stage& stage, int layer, const Layer& its) {
  const c10::InferenceMode no_autograd;
  std::vector<std::string> names;
  Tensors tensors = stage.parameters(layer);
  for (const ParameterSpec& parameter : its.parameters()) names.push_back(parameter.name);
  // Statistics of the data; a table may well hold infinities, as masks do.
  for (std::size_t i = 0; i < its.buffers().size(); ++i) {
    if (its.buffers()[i].over_replicas != OverReplicas::mean) continue;
    const at::Tensor& buffer = stage.buffers(layer)[i];
    tensors.push_back(buffer.element_size() < 4 ? buffer.to(at::kFloat) : buffer);
    names.push_back(its.buffers()[i].name);
  }
  const OptimizerState& optimizer = stage.optimizer_state(layer);
  for (std::size_t i = 0; i < optimizer.tensors.size(); ++i) {
    for (const auto& [name, tensor] : optimizer.tensors[i]) {
      tensors.push_back(tensor);
      names.push_back(fmt::format("{} of {}", name, its.parameters()[i].name));
    }
  }
  const auto at = last_not_finite(tensors);  // a device is waited for once
  return at ? names[*at] : "";
}

}  // namespace stagecraft
