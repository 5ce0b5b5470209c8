#include "models/check/tried_layer.h"

#include "models/check/watch.h"

#include <algorithm>

namespace stagecraft {

TriedLayer::TriedLayer(const Layer& layer, const LayerMaterials& materials)
    : layer_(layer),
      materials_(materials),
      parameters_(layer.parameters()),
      buffers_(layer.buffers()),
      needs_input_gradient_(std::ranges::any_of(materials.first.inputs, [](const at::Tensor& value) {
        return value.defined() && value.is_floating_point();
      })) {}

LayerMaterials TriedLayer::copy() const {
  LayerMaterials all = materials_;
  all.first.inputs = clones(materials_.first.inputs);
  all.second.inputs = clones(materials_.second.inputs);
  all.copies = clones(materials_.copies);
  all.buffers = clones(materials_.buffers);
  return all;
}

GradientAccumulator TriedLayer::accumulator() const {
  return GradientAccumulator(materials_.parameters, MatrixProducts::blas, &layer_);
}

Bundle TriedLayer::backward_input(const LayerMaterials& with, const Bundle& gradients, Kept& kept) const {
  return layer_.backward_bundle(with.copies, gradients, kept, needs_input_gradient_);
}

void TriedLayer::backward_weight(Kept& kept, GradientSink& sink) const {
  if (!parameters_.empty()) layer_.backward_weight(kept, sink);
}

Bundle TriedLayer::evaluate(const LayerMaterials& with, Tensors& buffers, const RandomKey& key) const {
  return layer_.forward_bundle({with.copies, buffers}, with.first.inputs,
                               {Mode::evaluate, key, true, &with.first.fields}, nullptr);
}

}  // namespace stagecraft
