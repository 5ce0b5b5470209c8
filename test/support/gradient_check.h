#pragma once

// Holds layers, losses and whole models against plain ATen formulas in double precision: the forward against
// the formula, both backward halves against LibTorch's autograd through the formula.

#include "models/layers/layer.h"
#include "models/losses/loss.h"
#include "models/model.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace stagecraft::test {

/// What a layer computes, written with differentiable operators and nothing of ours.
using Reference =
    std::function<at::Tensor(const Tensors& parameters, const Tensors& buffers, const at::Tensor& input)>;

/// Parameters and buffers of a layer, random, in double; buffers positive (they may be variances).
struct LayerState {
  Tensors parameters, buffers;
};
[[nodiscard]] LayerState random_state(const Layer& layer, at::ScalarType dtype = at::kDouble);

/// Gradients by autograd of `output` against `grad_output`; zeros for tensors that take no part.
[[nodiscard]] Tensors autograd(const at::Tensor& output, const at::Tensor& grad_output, const Tensors& of);

/// Asserts for a layer and an input (double, or tokens):
/// - the forward is the reference's;
/// - backward_input and backward_weight are autograd's gradients of the reference, and leave nothing kept;
/// - in training, all that check_gradients (models/check/check_gradients.h) holds of it.
void check_layer(const Layer& layer, const at::Tensor& input, const Context& context,
                 const Reference& reference);

/// Asserts that a model's loss and every gradient, through its layers' halves, are autograd's through the
/// layers' forwards and `reference_loss`. Without dropout: its kernel is not differentiable.
void check_model(
    const Model& model, const Loss& loss, const at::Tensor& input, const at::Tensor& targets,
    const std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)>& reference_loss);

}  // namespace stagecraft::test
