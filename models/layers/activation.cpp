#include "models/layers/activation.h"

#include "models/layers/functional.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/threshold_backward.h>

#include <utility>

namespace stagecraft {
namespace {

class Relu : public Layer {
 public:
  explicit Relu(std::string name) : Layer(std::move(name), {.type = ReluSpec::kName}) {}

  at::Tensor forward(const Weights&, const at::Tensor& input, const Context&, Kept* kept) const override {
    if (input.is_meta()) return at::empty_like(input);  // ATen has no such kernel
    at::Tensor output = at::relu(input);
    if (kept != nullptr) kept->for_input = {output};
    return output;
  }

  at::Tensor backward_input(const Tensors&, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    const auto [output] = functional::take<1>(kept.for_input);
    return needs_input_gradient ? at::threshold_backward(grad_output, output, 0) : at::Tensor();
  }
};

class Gelu : public Layer {
 public:
  explicit Gelu(std::string name) : Layer(std::move(name), {.type = GeluSpec::kName}) {}

  at::Tensor forward(const Weights&, const at::Tensor& input, const Context&, Kept* kept) const override {
    if (kept != nullptr) kept->for_input = {input};
    return at::gelu(input);
  }

  at::Tensor backward_input(const Tensors&, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    const auto [input] = functional::take<1>(kept.for_input);
    return needs_input_gradient ? at::gelu_backward(grad_output, input) : at::Tensor();
  }
};

}  // namespace

void describe(Fields&, ReluSpec&) {}
void describe(Fields&, GeluSpec&) {}

LayerPtr make_layer(const ReluSpec&, const LayerSite& site) {
  if (site.input_dtype == at::kLong) site.refuse("relu takes numbers, these are tokens");
  return std::make_shared<Relu>(site.name);
}

LayerPtr make_layer(const GeluSpec&, const LayerSite& site) {
  if (site.input_dtype == at::kLong) site.refuse("gelu takes numbers, these are tokens");
  return std::make_shared<Gelu>(site.name);
}

}  // namespace stagecraft
