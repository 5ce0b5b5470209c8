#include "test/support/gradient_check.h"

#include "stagecraft/models/gradient_accumulator.h"
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

void check_equal(const Tensors& a, const Tensors& b, const std::string& what) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO(what << " " << i);
    CHECK(at::equal(a[i], b[i]));
  }
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
  INFO(layer.name() << ", " << layer.type());
  LayerState state = random_state(layer);
  const bool numbers = input.is_floating_point();

  // The reference.
  Tensors of = leaves(state.parameters);
  const at::Tensor x = numbers ? input.clone().requires_grad_(true) : input;
  const at::Tensor expected = reference(of, state.buffers, x);
  const at::Tensor grad_output = at::randn_like(expected.detach());
  const Tensors parameters = of;
  if (numbers) of.push_back(x);
  const bool differentiable = expected.requires_grad();
  const Tensors gradients = differentiable ? autograd(expected, grad_output, of) : Tensors{};

  const c10::NoGradGuard no_grad;
  const at::Tensor input_before = input.clone(), grad_output_before = grad_output.clone();
  const Tensors parameters_before = clones(state.parameters), buffers = clones(state.buffers);
  const Weights weights{state.parameters, state.buffers};
  const auto restore_buffers = [&] {
    for (std::size_t i = 0; i < buffers.size(); ++i) state.buffers[i].copy_(buffers[i]);
  };
  const auto forward = [&](Kept* kept) {
    restore_buffers();
    return layer.forward(weights, input, context, kept);
  };

  const at::Tensor output = forward(nullptr);
  check_close(output, expected.detach(), "forward");
  {
    Tensors meta_parameters, meta_buffers;
    for (const at::Tensor& t : state.parameters) meta_parameters.push_back(t.to(at::kMeta));
    for (const at::Tensor& t : state.buffers) meta_buffers.push_back(t.to(at::kMeta));
    const at::Tensor meta =
        layer.forward({meta_parameters, meta_buffers}, input.to(at::kMeta), context, nullptr);
    CHECK(meta.sizes() == output.sizes());
    CHECK(meta.scalar_type() == output.scalar_type());
  }
  if (context.mode == Mode::evaluate) return;

  Kept kept;
  CHECK(at::equal(forward(&kept), output));
  GradientAccumulator sink(state.parameters);
  const at::Tensor grad_input = layer.backward_input(state.parameters, grad_output, kept, true);
  CHECK(kept.for_input.empty());
  layer.backward_weight(kept, sink);
  CHECK(kept.for_weight.empty());
  if (numbers && differentiable) check_close(grad_input, gradients.back(), "gradient of the input");
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    check_close(sink.gradients()[i], gradients[i], "gradient of " + layer.parameters()[i].name);
  }

  // Halves apart, as zero-bubble schedules have them.
  const auto twice = [&](bool apart) {
    GradientAccumulator sum(state.parameters);
    Kept first, second;
    forward(&first);
    forward(&second);
    layer.backward_input(state.parameters, grad_output, first, true);
    if (!apart) layer.backward_weight(first, sum);
    layer.backward_input(state.parameters, grad_output, second, true);
    if (apart) layer.backward_weight(first, sum);
    layer.backward_weight(second, sum);
    return clones(sum.gradients());
  };
  check_equal(twice(true), twice(false), "halves apart");

  Kept first_layer;
  forward(&first_layer);
  GradientAccumulator without(state.parameters);
  CHECK_FALSE(layer.backward_input(state.parameters, grad_output, first_layer, false).defined());
  layer.backward_weight(first_layer, without);
  check_equal(without.gradients(), sink.gradients(), "without input gradient");

  CHECK(at::equal(input, input_before));
  CHECK(at::equal(grad_output, grad_output_before));
  check_equal(state.parameters, parameters_before, "parameters after");
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
