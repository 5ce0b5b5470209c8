#pragma once

// A model: a list of layers, built from a config. Shapes are found by a dry pass on the `meta`
// device.

#include "models/layer.h"
#include "models/loss.h"
#include "models/model_config.h"

#include <string>
#include <vector>

namespace stagecraft {

/// What a data set's targets are: one class a sample, one a token, or numbers.
enum class Targets : std::uint8_t { classes, tokens, values };

/// Shape, without the batch dimension, and dtype of what the data set yields.
struct SampleSpec {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  std::int64_t classes = 0;  ///< classes of the targets, vocabulary size, or numbers a regression predicts
  Targets targets = Targets::classes;
};

/// A boundary tensor for a given micro-batch size.
struct BoundarySpec {
  std::vector<std::int64_t> shape;  ///< micro-batch dimension first
  at::ScalarType dtype = at::kFloat;
  [[nodiscard]] std::int64_t bytes() const;
};

struct Model {
  std::string name;  ///< "gpt 4x128"
  std::vector<LayerPtr> layers;
  SampleSpec sample;
  at::ScalarType dtype = at::kFloat;  ///< of the parameters and activations
  std::string fingerprint;            ///< of the layers, their sizes, the sample spec and dtype

  [[nodiscard]] std::int64_t parameter_count() const;
};

/// Throws InputError with `place` (the config's /model) for impossible sizes; the dry pass finds shapes that
/// do not fit together and names the two layers.
[[nodiscard]] Model build_model(const ModelConfig& config, const SampleSpec& sample, at::ScalarType dtype,
                                const InputPlace& place);

/// Boundary i is what layer i reads; the last one is the model's output. From a dry pass on `meta`. Boundary
/// 0 has the model's dtype where samples are numbers (cast them before layer 0) and kLong where they are
/// tokens.
[[nodiscard]] std::vector<BoundarySpec> boundaries(const Model& model, std::int64_t micro_batch);

/// Initial parameters of a layer: drawn from (seed, layer index, parameter position), the same wherever the
/// layer lives.
[[nodiscard]] Tensors initial_parameters(const Model& model, int layer, std::uint64_t seed,
                                         at::Device device = at::kCPU);
[[nodiscard]] Tensors initial_buffers(const Model& model, int layer, at::Device device = at::kCPU);

}  // namespace stagecraft
