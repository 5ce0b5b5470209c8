#include "test/support/gradient_check.h"

#include "models/check/check_gradients.h"
#include "models/layers/gradient_accumulator.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

namespace stagecraft::test {
namespace {

void check_close(const at::Tensor& ours, const at::Tensor& expected, const std::string& what) {
  INFO(what);
  REQUIRE(ours.defined());
  REQUIRE(ours.sizes() == expected.sizes());
  const double difference = ours.numel() == 0 ? 0 : (ours - expected).abs().max().item<double>();
  const double size = ours.numel() == 0 ? 0 : expected.abs().max().item<double>();
  CHECK(difference <= 1e-10 * (1 + size));
}

Tensors leaves(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone().requires_grad_(true));
  return copies;
}

Tensors clones(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

}  // namespace

LayerState random_state(const Layer& layer, at::ScalarType dtype) {
  LayerState state;
  for (const ParameterSpec& spec : layer.parameters())
    state.parameters.push_back(at::randn(spec.shape, dtype).mul_(0.5));
  for (const BufferSpec& spec : layer.buffers())
    state.buffers.push_back(at::rand(spec.shape, dtype).add_(0.5).to(spec.dtype.value_or(dtype)));
  return state;
}

Tensors autograd(const at::Tensor& output, const at::Tensor& grad_output, const Tensors& of) {
  Tensors gradients = torch::autograd::grad({output}, of, {grad_output}, false, false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(of[i]);
  }
  return gradients;
}

void check_layer(const Layer& layer, const at::Tensor& input, const Context& context,
                 const Reference& reference) {
  INFO(layer.name() << ", " << layer.facts().type);
  LayerState state = random_state(layer);
  const bool numbers = input.is_floating_point();

  Tensors of = leaves(state.parameters);
  const at::Tensor x = numbers ? input.clone().requires_grad_(true) : input;
  const at::Tensor expected = reference(of, state.buffers, x);
  const at::Tensor grad_output = at::randn_like(expected.detach());
  if (numbers) of.push_back(x);
  const bool differentiable = expected.requires_grad();
  const Tensors gradients = differentiable ? autograd(expected, grad_output, of) : Tensors{};

  const c10::NoGradGuard no_grad;
  Kept kept;
  const bool trains = context.mode == Mode::train;
  const at::Tensor output =
      layer.forward({state.parameters, state.buffers}, input, context, trains ? &kept : nullptr);
  check_close(output, expected.detach(), "forward");
  if (!trains) return;
  GradientAccumulator sink(state.parameters);
  const at::Tensor grad_input = layer.backward_input(state.parameters, grad_output, kept, true);
  CHECK(kept.for_input.empty());
  layer.backward_weight(kept, sink);
  CHECK(kept.for_weight.empty());
  if (numbers && differentiable) check_close(grad_input, gradients.back(), "gradient of the input");
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    check_close(sink.gradients()[i], gradients[i], "gradient of " + layer.parameters()[i].name);
  }
  CHECK_NOTHROW(check_gradients(layer, input));
}

void check_model(const Model& model, const Loss& loss, const at::Tensor& input, const at::Tensor& targets,
                 const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& reference_loss) {
  std::vector<LayerState> states;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    states.push_back(
        {initial_parameters(model, static_cast<int>(i), 5), initial_buffers(model, static_cast<int>(i))});
  }
  const Context context{Mode::train, {}};

  at::Tensor x = input;
  Tensors all;
  std::vector<LayerState> leaf_states;
  for (std::size_t i = 0; i < states.size(); ++i) {
    leaf_states.push_back({leaves(states[i].parameters), clones(states[i].buffers)});
    all.insert(all.end(), leaf_states[i].parameters.begin(), leaf_states[i].parameters.end());
    x = model.layers[i]->forward({leaf_states[i].parameters, leaf_states[i].buffers}, x, context, nullptr);
  }
  const at::Tensor expected = reference_loss(x, targets);
  const Tensors gradients = autograd(expected, at::ones_like(expected), all);

  const c10::NoGradGuard no_grad;
  std::vector<Kept> kept(states.size());
  x = input;
  for (std::size_t i = 0; i < states.size(); ++i) {
    x = model.layers[i]->forward({states[i].parameters, states[i].buffers}, x, context, &kept[i]);
  }
  Kept loss_kept;
  CHECK(loss.forward(x, targets, 1, &loss_kept, false).loss.item<double>() ==
        Approx(expected.item<double>()).epsilon(1e-12));
  at::Tensor gradient = loss.backward(loss_kept);
  std::size_t position = all.size();
  for (std::size_t i = states.size(); i-- > 0;) {
    gradient = model.layers[i]->backward_input(states[i].parameters, gradient, kept[i], i > 0);
    GradientAccumulator sink(states[i].parameters);
    if (!states[i].parameters.empty()) model.layers[i]->backward_weight(kept[i], sink);
    position -= states[i].parameters.size();
    for (std::size_t j = 0; j < states[i].parameters.size(); ++j) {
      check_close(sink.gradients()[j], gradients[position + j],
                  model.layers[i]->name() + "." + model.layers[i]->parameters()[j].name);
    }
  }
}

}  // namespace stagecraft::test
