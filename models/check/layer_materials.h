#pragma once

// What a layer is tried on: inputs of two micro-batches, weights and buffers, all of one precision.

#include "models/check/layer_check.h"
#include "models/layers/layer.h"

namespace stagecraft {

inline const RandomKey kTriedKey{11, 4, 7, 2};

struct LayerMaterials {
  LayerInput first, second;
  Tensors parameters;  ///< at full precision
  Tensors copies;      ///< in what the layer computes in
  Tensors buffers;
};

/// In `precision`. Drawn ones where the trial allows it and the layer gives finite numbers for them; else drawn inputs
/// and the layer's own weights; else what the trial has.
[[nodiscard]] LayerMaterials materials_for(const Layer& layer, const LayerTrial& trial, Precision precision);

/// The layer's training forward; buffers are changed.
[[nodiscard]] Bundle train_forward(const Layer& layer, const LayerMaterials& materials,
                                   const LayerInput& input, Tensors& buffers, Kept* kept,
                                   bool commit_buffers = true);

/// A drawn gradient for each value that has one.
[[nodiscard]] Bundle drawn_gradients(const Bundle& outputs);

[[nodiscard]] bool all_finite(const Bundle& values);

}  // namespace stagecraft
