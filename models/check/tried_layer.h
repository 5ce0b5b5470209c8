#pragma once

// A layer's halves as a pipeline calls them, for checks.

#include "models/check/layer_materials.h"
#include "models/layers/gradient_accumulator.h"

#include <string>
#include <vector>

namespace stagecraft {

/// A layer and what it is tried on. Checks call it on copies, so that a call that modifies something spoils no other.
/// Keeps references to both.
class TriedLayer {
 public:
  TriedLayer(const Layer& layer, const LayerMaterials& materials);

  [[nodiscard]] const Layer& layer() const { return layer_; }
  [[nodiscard]] const LayerMaterials& materials() const { return materials_; }
  [[nodiscard]] const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<BufferSpec>& buffers() const { return buffers_; }
  /// Whether one of its inputs has a gradient. Tokens have none.
  [[nodiscard]] bool needs_input_gradient() const { return needs_input_gradient_; }

  [[nodiscard]] LayerMaterials copy() const;
  [[nodiscard]] GradientAccumulator accumulator() const;
  [[nodiscard]] Bundle backward_input(const LayerMaterials& with, const Bundle& gradients, Kept& kept) const;
  void backward_weight(Kept& kept, GradientSink& sink) const;
  [[nodiscard]] Bundle evaluate(const LayerMaterials& with, Tensors& buffers, const RandomKey& key) const;

 private:
  const Layer& layer_;
  const LayerMaterials& materials_;
  std::vector<ParameterSpec> parameters_;
  std::vector<BufferSpec> buffers_;
  bool needs_input_gradient_;
};

}  // namespace stagecraft
