#pragma once

// What a layer says of itself: its weights, what it reads, what it passes by and what it costs. All that planning,
// checkpoints and checks need of a layer; its mathematics (layer.h) says none of it again.

#include "models/layers/layer_estimate.h"
#include "models/layers/number_check.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// How a parameter starts: a distribution, drawn from the stream (seed, layer, parameter's position).
struct Initial {
  enum class Kind : std::uint8_t { zeros, ones, normal, uniform };
  Kind kind = Kind::zeros;
  double scale = 0;  ///< normal: standard deviation; uniform: half width around 0
  /// Of the projection that ends a residual branch: the scale is divided by the root of the number of layers
  /// with such a parameter, so that the residual stream's variance does not grow with depth (GPT-2).
  bool ends_residual = false;
};

struct ParameterSpec {
  std::string name;  ///< "weight"
  std::vector<std::int64_t> shape;
  Initial initial;
  bool decays = true;  ///< weight decay applies; every parameter's does, as in PyTorch's `model.parameters()`
  bool full = false;   ///< read at full precision where a model computes in a narrower one: norms do
  /// The name of one weight that further layers may hold too, each a copy: all begin and stay equal, and each
  /// update is made from the sum of their gradients. Empty: it is this layer's alone.
  std::string tied{};
  bool table = false;  ///< whose rows indices choose, as an embedding's
  /// Dimensions from the outermost to the innermost as PyTorch's own parameter lies, where that is not dense in
  /// their order. Here all lie in their order, but updates go by this one.
  std::vector<std::int64_t> memory_order{};
  /// Among PyTorch's parameters(), in whose order norms are added; where all have the same, it is that of layers.
  std::int64_t place = 0;
};

/// What replicas, each having seen its own micro-batches, make of a buffer at the end of a step.
enum class OverReplicas : std::uint8_t {
  mean,   ///< statistics of the data are averaged
  first,  ///< the first replica's for all: counters
  alone,  ///< nothing: tables that training does not change
};

struct BufferSpec {
  std::string name;  ///< "running_mean"
  std::vector<std::int64_t> shape;
  double initial = 0;
  std::optional<at::ScalarType> dtype{};  ///< absent: full precision
  OverReplicas over_replicas = OverReplicas::mean;
  /// Its initial value is all that it ever is, and comes with the model: a frozen weight. Checkpoints have its hash.
  bool brought = false;
};

/// For each value of the bundle behind a layer the place before it of a value; none for those it makes.
using Origins = std::vector<std::optional<std::size_t>>;

/// Of one layer, the same for its whole life. Shapes are those of one sample of its input.
struct LayerFacts {
  std::string type;  ///< "linear", as in a config's layer list
  std::string
      details{};  ///< what shapes do not tell: "heads 4", "kernel 3, stride 1"; in tables and fingerprints
  std::vector<ParameterSpec> parameters{};
  std::vector<BufferSpec> buffers{};
  std::vector<std::string>
      fields{};  ///< of the batch, that forward reads besides its input, by the model's names

  /// Values that it passes by, unread in training and in evaluation. Such a value may be undefined on this stage, its
  /// gradient then too. Empty: it makes all.
  Origins passes{};
  /// Values with the numbers of one before it, read or not. Empty: those of `passes`.
  Origins carries{};
  std::vector<NumberCheck> number_checks{};  ///< what it can use of the numbers of its input, or of fields
  /// Where it should bring its own values and has none: what to do about it. It can be planned and profiled, and
  /// trained from a checkpoint. Empty: nothing is missing.
  std::string missing_weights{};

  /// Whether, for tensors of the same shapes, it asks a device for the same work every time, so that it may be
  /// recorded once and repeated (engine/device/graphs.h). Not where the host takes part.
  bool repeats = true;
  /// Samples of the smallest micro-batch it can be trained on. Absent: 1.
  std::function<std::int64_t(const std::vector<std::int64_t>& shape)> least_samples{};
  /// Of the matrix products in one sample's forward; additions, norms and activations do not count. Absent: 0.
  std::function<std::int64_t(const std::vector<std::int64_t>& shape)> multiply_adds{};
  /// Layers of a model with equal, non-empty texts cost the same: one is profiled for all.
  std::string cost_class{};
  /// What a micro-batch would take, without running it; `first`: it is the model's first layer, and makes no gradient
  /// of its input. Absent: only a run can tell.
  std::function<LayerEstimate(std::int64_t micro_batch, bool first)> estimate{};

  [[nodiscard]] const Origins& carried() const { return carries.empty() ? passes : carries; }
};

}  // namespace stagecraft
