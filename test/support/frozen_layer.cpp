#include "test/support/frozen_layer.h"

#include "base/error.h"

#include <memory>
#include <utility>

namespace stagecraft::test {
namespace {

class FrozenLayer final : public Layer {
 public:
  FrozenLayer(const LayerPtr& layer, Tensors weights)
      : Layer(layer->name(), facts_of(*layer, weights)), layer_(layer), weights_(std::move(weights)) {}
  at::Tensor initial_buffer(int buffer) const override {
    const auto at = static_cast<std::size_t>(buffer);
    if (at < weights_.size()) return weights_[at];
    return layer_->initial_buffer(static_cast<int>(at - weights_.size()));
  }

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context& context,
                     Kept* kept) const override {
    const auto own = static_cast<std::ptrdiff_t>(weights_.size());
    const Tensors parameters(weights.buffers.begin(), weights.buffers.begin() + own);
    Tensors buffers(weights.buffers.begin() + own, weights.buffers.end());
    return layer_->forward({parameters, buffers}, input, context, kept);
  }
  at::Tensor backward_input(const Tensors&, const at::Tensor&, Kept&, bool) const override {
    throw InternalError("a frozen layer has no backward");
  }

 private:
  static LayerFacts facts_of(const Layer& layer, const Tensors& weights) {
    LayerFacts facts{.type = "frozen " + layer.facts().type,
                     .fields = layer.facts().fields,
                     .repeats = layer.facts().repeats};
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const ParameterSpec& spec = layer.parameters()[i];
      facts.buffers.push_back(
          {spec.name, spec.shape, 0, weights[i].scalar_type(), OverReplicas::alone, /*brought=*/true});
    }
    for (const BufferSpec& spec : layer.buffers()) facts.buffers.push_back(spec);
    return facts;
  }

  LayerPtr layer_;
  Tensors weights_;
};

}  // namespace

void freeze_layers(Model& model, int count, std::uint64_t seed) {
  for (int layer = 0; layer < count; ++layer) {
    const Tensors weights = compute_copy(model, layer, initial_parameters(model, layer, seed));
    LayerPtr& its = model.layers.at(static_cast<std::size_t>(layer));
    its = std::make_shared<const FrozenLayer>(its, weights);
  }
  model.gradient_from = first_trained(model.layers);
  STAGECRAFT_CHECK(model.gradient_from >= count, "the layers behind have weights");
}

}  // namespace stagecraft::test
