#include "engine/session/named_state.h"

#include "base/error.h"
#include "models/tensors/shape_text.h"

#include <fmt/format.h>

#include <set>
#include <utility>

namespace stagecraft {
namespace {

const at::Tensor& in(const LayerState& state, const TensorPlace& place) {
  return (place.parameter ? state.parameters : state.buffers).at(place.index);
}

std::set<int> held_by(const Worker& worker) {
  const std::vector<int> layers = worker.layers();
  return {layers.begin(), layers.end()};
}

}  // namespace

NamedState::NamedState(const Model& model, bool captured) {
  for (int i = 0; i < static_cast<int>(model.layers.size()); ++i) {
    const Layer& layer = *model.layers[static_cast<std::size_t>(i)];
    const auto add = [&](const std::string& name, bool parameter, std::size_t index) {
      places_[captured ? name : layer.name() + "." + name].push_back({i, parameter, index});
    };
    const std::vector<ParameterSpec>& parameters = layer.parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) add(parameters[p].name, true, p);
    const std::vector<BufferSpec>& buffers = layer.buffers();
    for (std::size_t b = 0; b < buffers.size(); ++b) add(buffers[b].name, false, b);
  }
}

void NamedState::read(const Worker& worker, std::map<std::string, at::Tensor>& state) const {
  const std::set<int> held = held_by(worker);
  std::map<int, LayerState> layers;
  for (const int layer : held) layers.emplace(layer, worker.state(layer));
  for (const auto& [name, places] : places_) {
    for (const TensorPlace& place : places) {
      if (!held.contains(place.layer)) continue;
      state.try_emplace(name, in(layers.at(place.layer), place).clone());
      break;
    }
  }
}

void NamedState::write(const std::map<std::string, at::Tensor>& weights, Worker& worker) const {
  std::map<int, LayerState> layers;
  for (const int layer : held_by(worker)) layers.emplace(layer, worker.state(layer));
  for (const auto& [name, places] : places_) {
    for (const TensorPlace& place : places) {
      const auto layer = layers.find(place.layer);
      if (layer == layers.end()) continue;
      const auto given = weights.find(name);
      if (given == weights.end()) {
        throw InputError({"the state", ""}, fmt::format("has no \"{}\", which the pipeline holds", name));
      }
      LayerState& its = layer->second;
      at::Tensor& now = (place.parameter ? its.parameters : its.buffers).at(place.index);
      if (given->second.sizes() != now.sizes()) {
        throw InputError({"the state", ""},
                         fmt::format("\"{}\" is {}, and the pipeline's is {}", name,
                                     shape_text(given->second.sizes().vec()), shape_text(now.sizes().vec())));
      }
      now = given->second.detach().to(now.scalar_type());
    }
  }
  for (auto& [index, layer] : layers) worker.set_state(index, std::move(layer));
}

}  // namespace stagecraft
