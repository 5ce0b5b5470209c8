#pragma once

// A model: a list of layers, built from a config. Shapes are found by a dry pass on the `meta`
// device.

#include "base/error.h"
#include "base/ids.h"
#include "models/families/registry.h"
#include "models/layers/layer.h"
#include "models/losses/loss.h"
#include "models/tensors/bundle.h"
#include "models/tensors/matrix_products.h"
#include "models/tensors/sample.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// What a model is computed in. Mixed where the two differ: layers then read copies of the parameters.
struct Precision {
  at::ScalarType full = at::kFloat;     ///< of parameters, gradient sums, optimizer state and buffers
  at::ScalarType compute = at::kFloat;  ///< of activations, boundaries and what layers read of parameters
  MatrixProducts products = MatrixProducts::blas;

  constexpr Precision() = default;
  constexpr Precision(at::ScalarType one) : full(one), compute(one) {}  // NOLINT: one for everything
  constexpr Precision(at::ScalarType its_full, at::ScalarType its_compute)
      : full(its_full), compute(its_compute) {}
  [[nodiscard]] bool mixed() const { return full != compute; }
  [[nodiscard]] std::string name() const;  ///< of `compute`: "float32", "bfloat16"; as in profiles and plans
};

/// A weight that several layers hold. The first of them owns it: checkpoints and norms have it there once.
struct Tie {
  struct Holder {
    int layer = 0;
    int parameter = 0;  ///< of the layer's
  };
  std::string name;
  std::vector<Holder> holders;  ///< at least two, of ascending layers
};

/// By the order of their first layers. Throws InputError where layers that hold one weight differ in its shape,
/// precision or decay, or one layer holds it twice.
[[nodiscard]] std::vector<Tie> ties_between(const std::vector<LayerPtr>& layers,
                                            const InputPlace& place = {});

struct Model {
  std::string name;  ///< "gpt 4x128"
  std::vector<LayerPtr> layers;
  SampleSpec sample;
  Precision precision;
  /// The first layer with a trained weight: of those before it nobody needs a backward. 0 where no layer has any.
  int gradient_from = 0;
  std::int64_t residual_layers = 0;  ///< with a parameter that ends a residual branch (Initial)
  std::vector<Tie> ties;
  std::string fingerprint;            ///< of the layers, ties, their sizes, the sample spec and precision
  std::vector<BatchField> fields;     ///< that its layers and its own loss read, each once
  std::shared_ptr<const Loss> loss;   ///< the model's own; null: it brings none
  std::vector<std::int64_t> shorter;  ///< lengths that samples may be cut to
  std::string why_no_loss;            ///< what the data lack for it; empty: there is none
  std::string note;                   ///< a line for people at the start of a run; empty: none
  std::optional<CompiledFor> compiled_for;  ///< none: no layer has compiled code

  /// Those that layers [first, last) read, and `loss_too`, where it is not null.
  [[nodiscard]] std::vector<BatchField> fields_of(int first, int last, const Loss* loss_too) const;

  /// The owner of a parameter: itself, unless it is tied to one of a layer before.
  [[nodiscard]] Tie::Holder owner_of(int layer, int parameter) const;
  [[nodiscard]] bool owns(int layer, int parameter) const {
    return owner_of(layer, parameter).layer == layer;
  }

  /// Tied weights count once.
  [[nodiscard]] std::int64_t parameter_count() const;
  /// Of one sample's forward (Layer::multiply_adds).
  [[nodiscard]] std::int64_t multiply_adds() const;
  /// What layer 0 reads of a data set's inputs: in the compute precision, unless they are tokens.
  [[nodiscard]] at::Tensor boundary_of(const at::Tensor& inputs) const;
};

/// More bytes of parameters than any machine has: a slip in the config, refused before anything is made of
/// it. Sums of a model's bytes fit 64 bits.
inline constexpr Bytes kMostParameterBytes{std::int64_t{1} << 56U};

/// Model::gradient_from of these layers.
[[nodiscard]] int first_trained(const std::vector<LayerPtr>& layers);

/// Of the layer's parameters, at full precision.
[[nodiscard]] Bytes parameter_bytes(const Model& model, int layer);

/// Throws InputError with `place` (the config's /model) for impossible sizes; the dry pass finds shapes that
/// do not fit together and names the two layers. Allocates no tensors.
[[nodiscard]] Model build_model(const ModelConfig& config, const SampleSpec& sample, Precision precision,
                                const InputPlace& place);

/// Boundary i is what layer i reads; the last one is the model's output. From a dry pass on `meta`. Boundary
/// 0 is in the compute precision where samples are numbers (cast them before layer 0) and kLong where they
/// are tokens. Throws InputError for micro-batches that no tensor can have.
[[nodiscard]] std::vector<BoundarySpec> boundaries(const Model& model, const BatchSize& micro_batch);
[[nodiscard]] inline std::vector<BoundarySpec> boundaries(const Model& model, std::int64_t samples) {
  return boundaries(model, BatchSize{samples});
}

/// Initial parameters of a layer, at full precision: drawn from (seed, layer index, parameter position) of the
/// layer that owns each, the same wherever the layer lives.
[[nodiscard]] Tensors initial_parameters(const Model& model, int layer, std::uint64_t seed,
                                         at::Device device = at::kCPU);
/// What the layer reads for its `parameters`: copies of them in the compute precision, those that it wants at
/// full precision in that; the parameters themselves where the model is not mixed.
[[nodiscard]] Tensors compute_copy(const Model& model, int layer, const Tensors& parameters);
[[nodiscard]] Tensors initial_buffers(const Model& model, int layer, at::Device device = at::kCPU);

}  // namespace stagecraft
