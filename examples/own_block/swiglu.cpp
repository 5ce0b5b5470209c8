#include "llama.h"
#include "rms_norm.h"
#include <ATen/ATen.h>

namespace llama {
namespace {

using stagecraft::Context, stagecraft::GradientSink, stagecraft::Initial, stagecraft::Kept, stagecraft::Layer,
    stagecraft::Tensors, stagecraft::Weights;
namespace functional = stagecraft::functional;

class SwigluLayer final : public Layer {
 public:
  SwigluLayer(const stagecraft::LayerSite& site, const Swiglu& s)
      : Layer(site.name, facts_of(site.input[1], s.hidden)), hidden_(s.hidden), products_(site.products) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context&,
                     Kept* kept) const override {
    const Tensors& p = weights.parameters;
    auto [normed, normal, scale] = rms_norm(input, p[kNorm], kEpsilon);
    const at::Tensor gate_up = functional::linear(normed, p[kGateUp], {}, products_);
    const at::Tensor active = at::silu(gate(gate_up)) * up(gate_up);
    if (kept != nullptr) {
      kept->for_input = {normal, scale, gate_up};
      kept->for_weight = {normed, active};
    }
    return functional::linear(active, p[kDown], {}, products_).add(input);
  }

  at::Tensor backward_input(const Tensors& p, const at::Tensor& grad_output, Kept& kept,
                            bool) const override {
    const auto [normal, scale, gate_up] = functional::take<3>(kept.for_input);
    const auto [normed, active] = functional::take<2>(kept.for_weight);
    const at::Tensor grad_active = functional::linear_grad_input(grad_output, p[kDown], products_);
    const at::Tensor grad_gate_up = at::cat(
        {at::silu_backward(grad_active * up(gate_up), gate(gate_up)), grad_active * at::silu(gate(gate_up))},
        -1);
    auto [grad_input, grad_norm] = rms_norm_backward(
        functional::linear_grad_input(grad_gate_up, p[kGateUp], products_), normal, scale, p[kNorm]);
    kept.for_weight = {grad_norm, normed, grad_gate_up, active, grad_output};
    return grad_input.add(grad_output);
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    const auto [grad_norm, normed, grad_gate_up, active, grad_output] = functional::take<5>(kept.for_weight);
    sink.add(kNorm, grad_norm);
    functional::linear_grad_weight(sink, kGateUp, -1, grad_gate_up, normed);
    functional::linear_grad_weight(sink, kDown, -1, grad_output, active);
  }

 private:
  enum { kNorm, kGateUp, kDown };
  static stagecraft::LayerFacts facts_of(std::int64_t hidden_size, std::int64_t hidden) {
    const Initial normal{Initial::Kind::normal, 0.02}, last{Initial::Kind::normal, 0.02, true};
    return {.type = "swiglu",
            .parameters = {norm_weight(hidden_size),
                           {"gate_up", {2 * hidden, hidden_size}, normal},
                           {"down", {hidden_size, hidden}, last}},
            .multiply_adds = [=](const std::vector<std::int64_t>& shape) {
              return 3 * shape[0] * hidden_size * hidden;
            }};
  }
  at::Tensor gate(const at::Tensor& gate_up) const { return gate_up.narrow(-1, 0, hidden_); }
  at::Tensor up(const at::Tensor& gate_up) const { return gate_up.narrow(-1, hidden_, hidden_); }

  std::int64_t hidden_;
  stagecraft::MatrixProducts products_;
};

}  // namespace

void describe(stagecraft::Fields& f, Swiglu& s) {
  f.required("hidden", s.hidden, "hidden width", stagecraft::json::at_least(1));
}

stagecraft::LayerPtr make(const Swiglu& s, const stagecraft::LayerSite& site) {
  if (site.input_dtype == at::kLong || site.input.size() != 2) site.refuse("swiglu takes [tokens, width]");
  return std::make_shared<SwigluLayer>(site, s);
}

}  // namespace llama
