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

#include "models/layers/layer_facts.h"
#include "models/tensors/batch_fields.h"
#include "models/tensors/bundle.h"
#include "models/tensors/random_key.h"
#include "models/tensors/tensors.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

enum class Mode : std::uint8_t { train, evaluate };

/// What a forward is told besides its tensors.
struct Context {
  Mode mode = Mode::train;
  RandomKey key;
  bool commit_buffers = true;            ///< false where a training forward is done again (recomputation)
  const FieldTensors* fields = nullptr;  ///< has those of LayerFacts::fields; null where no layer reads any
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
  /// `name` is unique in the model: "block3.attention".
  Layer(std::string name, LayerFacts facts) : name_(std::move(name)), facts_(std::move(facts)) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const LayerFacts& facts() const { return facts_; }
  [[nodiscard]] const std::vector<ParameterSpec>& parameters() const { return facts_.parameters; }
  [[nodiscard]] const std::vector<BufferSpec>& buffers() const { return facts_.buffers; }
  [[nodiscard]] std::int64_t least_samples(const std::vector<std::int64_t>& shape) const {
    return facts_.least_samples ? facts_.least_samples(shape) : 1;
  }
  [[nodiscard]] std::int64_t multiply_adds(const std::vector<std::int64_t>& shape) const {
    return facts_.multiply_adds ? facts_.multiply_adds(shape) : 0;
  }

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
  LayerFacts facts_;
};

using LayerPtr = std::shared_ptr<const Layer>;

}  // namespace stagecraft
