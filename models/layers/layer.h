#pragma once

// A layer: the smallest unit a model can be cut between. Layers are functions of their arguments: parameters
// and buffers come in from outside (they belong to a version of a stage's weights), what backward needs goes
// out in `Kept`, weight gradients go to a `GradientSink`. A layer object itself is immutable and may be used
// by many ranks and micro-batches at once.
//
// Backward is written out instead of recorded: forward runs without autograd, keeps exactly the tensors its
// two backward halves name, and each half calls ATen's own backward kernels. This makes the split of backward
// free, the kept bytes explicit, and takes LibTorch's tape, hooks and threads out of the steady state. Since
// every forward is composed of differentiable ATen operators, tests hold each layer against autograd in fp64
// (check_gradients.h).

#include "models/layers/layer_estimate.h"
#include "models/layers/number_check.h"
#include "models/tensors/batch_fields.h"
#include "models/tensors/bundle.h"
#include "models/tensors/random_key.h"
#include "models/tensors/tensors.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

enum class Mode : std::uint8_t { train, evaluate };

/// What a forward is told besides its tensors.
struct Context {
  Mode mode = Mode::train;
  RandomKey key;
  bool commit_buffers = true;            ///< false where a training forward is done again (recomputation)
  const FieldTensors* fields = nullptr;  ///< has those of Layer::fields(); null where no layer reads any
};

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

/// What one layer keeps of one micro-batch. backward_input consumes `for_input` and may move tensors on to
/// `for_weight`.
struct Kept {
  Tensors for_input;
  Tensors for_weight;
  std::size_t form =
      0;  ///< of a layer that has several, such as one per length of samples: which forward it was
  void clear() {
    for_input.clear();
    for_weight.clear();
  }
};

/// Where weight gradients go: one accumulation of one stage, at full precision whatever the contributions'.
/// The first contribution writes, later ones add; that rule lives here and nowhere else, so split and whole
/// backward, oracle and engine round alike.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// gradient(parameter) (+)= left @ right, as one fused multiply-accumulate. Both are matrices; a gradient
  /// of more dimensions is seen as [rows of left, columns of right]. May keep no reference to either.
  /// Throws InternalError, here and in add(): no such parameter, another shape, no floating-point numbers.
  virtual void add_product(int parameter, const at::Tensor& left, const at::Tensor& right) = 0;
  /// The gradient's shape is the parameter's: nothing is broadcast.
  virtual void add(int parameter, const at::Tensor& gradient) = 0;
};

/// One layer's inputs that belong to a version of the weights.
struct Weights {
  const Tensors& parameters;  ///< in the order of parameters(), in the dtype the layer computes in
  Tensors&
      buffers;  ///< in the order of buffers(); a training forward updates them in place, nothing else does
};

class Layer {
 public:
  explicit Layer(std::string name) : name_(std::move(name)) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  [[nodiscard]] const std::string& name() const {
    return name_;
  }                                                    ///< unique in the model: "block3.attention"
  [[nodiscard]] virtual std::string type() const = 0;  ///< "linear", as in a config's layer list
  /// What the shapes do not tell: "heads 4", "kernel 3, stride 1, padding 1". In tables and fingerprints.
  [[nodiscard]] virtual std::string details() const { return ""; }
  [[nodiscard]] virtual std::vector<ParameterSpec> parameters() const { return {}; }
  [[nodiscard]] virtual std::vector<BufferSpec> buffers() const { return {}; }

  /// Fields of the batch that its forward reads besides its input (Context::fields), by the model's names.
  [[nodiscard]] virtual std::vector<std::string> fields() const { return {}; }

  /// The value that a parameter or buffer begins with, where the layer brings its own: on the CPU, of the
  /// spec's shape, to be copied. Undefined: it begins as its spec says.
  [[nodiscard]] virtual at::Tensor initial_parameter(int parameter) const {
    (void)parameter;
    return {};
  }
  [[nodiscard]] virtual at::Tensor initial_buffer(int buffer) const {
    (void)buffer;
    return {};
  }

  /// For each value of the bundle behind it the place before it of a value that it passes by, unread in training
  /// and in evaluation; none for those it makes. Such a value may be undefined on this stage, its gradient then
  /// too. Empty: it makes all.
  [[nodiscard]] virtual std::vector<std::optional<std::size_t>> passes() const { return {}; }
  /// The same of values with the numbers of one before it, read or not.
  [[nodiscard]] virtual std::vector<std::optional<std::size_t>> carries() const { return passes(); }
  /// What it can use of the numbers of its input, or of fields, as they are there.
  [[nodiscard]] virtual std::vector<NumberCheck> number_checks() const { return {}; }

  /// Where it should bring its own values and has none: what to do about it. It can be planned and profiled,
  /// and trained from a checkpoint. Empty: nothing is missing.
  [[nodiscard]] virtual std::string missing_weights() const { return ""; }

  /// Samples of the smallest micro-batch it can be trained on, `shape` being that of one sample of its input.
  [[nodiscard]] virtual std::int64_t least_samples(const std::vector<std::int64_t>& shape) const {
    (void)shape;
    return 1;
  }

  /// Whether, for tensors of the same shapes, it asks a device for the same work every time, so that it may
  /// be recorded once and repeated (engine/device/graphs.h). Not where the host takes part.
  [[nodiscard]] virtual bool repeats() const { return true; }

  /// Multiply-adds of the matrix products in one sample's forward, `shape` being that of its input.
  /// Additions, norms and activations do not count.
  [[nodiscard]] virtual std::int64_t multiply_adds(const std::vector<std::int64_t>& shape) const {
    (void)shape;
    return 0;
  }

  /// Layers of a model with equal, non-empty texts cost the same: one is profiled for all.
  [[nodiscard]] virtual std::string cost_class() const { return ""; }
  /// What a micro-batch would take, without running it; absent where only a run can tell. `first`: it is the
  /// model's first layer, and makes no gradient of its input.
  [[nodiscard]] virtual std::optional<LayerEstimate> estimate(std::int64_t micro_batch, bool first) const {
    (void)micro_batch, (void)first;
    return std::nullopt;
  }

  /// The output for `input`; `kept` gets what backward needs. Null: no backward will follow, as always in
  /// Mode::evaluate. Accepts tensors on the `meta` device (shapes come from there), does not modify `input`
  /// and keeps no state. The output may be `input` itself or a view of it (flatten, dropout in evaluation).
  /// The caller has autograd off (c10::InferenceMode or c10::NoGradGuard) unless it wants to differentiate
  /// the forward itself.
  [[nodiscard]] virtual at::Tensor forward(const Weights& weights, const at::Tensor& input,
                                           const Context& context, Kept* kept) const = 0;
  /// Gradient of the input. Undefined where `needs_input_gradient` is false (no layer before it has a trained
  /// weight). Of layers before the model's first one with a trained weight no backward is asked for. What
  /// backward_weight needs afterwards is in kept.for_weight; kept.for_input is empty on return. `grad_output`
  /// is not modified, but may be kept for backward_weight, returned, or viewed by what is returned.
  [[nodiscard]] virtual at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output,
                                                  Kept& kept, bool needs_input_gradient) const = 0;
  /// The same two, as a pipeline calls them: what a layer reads and makes may be several tensors. Gradients
  /// are those of the values that have one (bundle.h), none of them undefined but where no input gradient is
  /// needed, which has none. A layer of one tensor leaves them as they are; they throw InternalError where its
  /// tensor is undefined, or of double precision where it reads none, or the other way round.
  [[nodiscard]] virtual Bundle forward_bundle(const Weights& weights, const Bundle& inputs,
                                              const Context& context, Kept* kept) const;
  [[nodiscard]] virtual Bundle backward_bundle(const Tensors& parameters, const Bundle& gradients, Kept& kept,
                                               bool needs_input_gradient) const;
  /// Gradients of the parameters into `sink`; kept is empty on return. Not called for layers without
  /// parameters.
  virtual void backward_weight(Kept& kept, GradientSink& sink) const {
    (void)sink;
    kept.clear();
  }

 private:
  std::string name_;
};

using LayerPtr = std::shared_ptr<const Layer>;

}  // namespace stagecraft
