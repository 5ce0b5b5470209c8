#include "llama.h"
#include "rms_norm.h"
#include <ATen/ATen.h>

#include <cmath>

namespace llama {
namespace {

using stagecraft::Context, stagecraft::GradientSink, stagecraft::Initial, stagecraft::Kept, stagecraft::Layer,
    stagecraft::Tensors, stagecraft::Weights;
namespace functional = stagecraft::functional;

/// Rotates the pairs (i, i + d/2) of x [samples, heads, tokens, d] by angles that grow with the token's
/// position. `direction` -1 rotates back, which is the backward.
at::Tensor rotate(const at::Tensor& x, double base, double direction) {
  const std::int64_t half = x.size(3) / 2;
  const auto options = x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor frequencies = at::arange(half, options).mul(-std::log(base) / half).exp();
  const at::Tensor angles = at::arange(x.size(2), options).unsqueeze(1) * frequencies;
  const at::Tensor cosine = angles.cos().to(x.scalar_type());
  const at::Tensor sine = angles.sin().mul(direction).to(x.scalar_type());
  const at::Tensor a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
  return at::cat({a * cosine - b * sine, a * sine + b * cosine}, 3);
}

class RotaryAttentionLayer final : public Layer {
 public:
  RotaryAttentionLayer(const stagecraft::LayerSite& site, const RotaryAttention& s)
      : Layer(site.name, facts_of(site.input[1], s)),
        heads_(s.heads),
        base_(s.base),
        products_(site.products) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context&,
                     Kept* kept) const override {
    const Tensors& p = weights.parameters;
    auto [normed, normal, scale] = rms_norm(input, p[kNorm], kEpsilon);
    const auto qkv = functional::linear(normed, p[kQkv], {}, products_)
                         .view({input.size(0), input.size(1), 3, heads_, -1});
    const at::Tensor q = rotate(of(qkv, 0), base_, 1), k = rotate(of(qkv, 1), base_, 1),
                     v = of(qkv, 2).contiguous();
    const at::Tensor later = at::ones({q.size(2), q.size(2)}, q.options().dtype(at::kBool)).triu(1);
    const at::Tensor scores = at::matmul(q, k.transpose(2, 3)).mul(1 / root(q));
    const at::Tensor probabilities = scores.masked_fill(later, -1e30).softmax(-1);
    const at::Tensor mixed = at::matmul(probabilities, v).transpose(1, 2).flatten(2);
    if (kept != nullptr) {
      kept->for_input = {normal, scale, q, k, v, probabilities};
      kept->for_weight = {normed, mixed};
    }
    return functional::linear(mixed, p[kProject], {}, products_).add(input);
  }

  at::Tensor backward_input(const Tensors& p, const at::Tensor& grad_output, Kept& kept,
                            bool) const override {
    const auto [normal, scale, q, k, v, probabilities] = functional::take<6>(kept.for_input);
    const auto [normed, mixed] = functional::take<2>(kept.for_weight);
    const at::Tensor grad_mixed = functional::linear_grad_input(grad_output, p[kProject], products_)
                                      .view({q.size(0), q.size(2), heads_, -1})
                                      .transpose(1, 2);
    const at::Tensor grad_v = at::matmul(probabilities.transpose(2, 3), grad_mixed);
    const at::Tensor grad_p = at::matmul(grad_mixed, v.transpose(2, 3));
    const at::Tensor grad_scores =
        (probabilities * (grad_p - (grad_p * probabilities).sum(-1, true))).mul(1 / root(q));
    const at::Tensor grad_q = rotate(at::matmul(grad_scores, k), base_, -1);
    const at::Tensor grad_k = rotate(at::matmul(grad_scores.transpose(2, 3), q), base_, -1);
    // [samples, heads, tokens, d] three times -> [samples, tokens, 3 * hidden_size]
    const at::Tensor grad_qkv = at::stack({grad_q, grad_k, grad_v}, 2).permute({0, 3, 2, 1, 4}).flatten(2);
    auto [grad_input, grad_norm] = rms_norm_backward(
        functional::linear_grad_input(grad_qkv, p[kQkv], products_), normal, scale, p[kNorm]);
    kept.for_weight = {grad_norm, normed, grad_qkv, mixed, grad_output};
    return grad_input.add(grad_output);
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    const auto [grad_norm, normed, grad_qkv, mixed, grad_output] = functional::take<5>(kept.for_weight);
    sink.add(kNorm, grad_norm);
    functional::linear_grad_weight(sink, kQkv, -1, grad_qkv, normed);
    functional::linear_grad_weight(sink, kProject, -1, grad_output, mixed);
  }

 private:
  enum { kNorm, kQkv, kProject };
  static stagecraft::LayerFacts facts_of(std::int64_t hidden_size, const RotaryAttention& s) {
    const Initial normal{Initial::Kind::normal, 0.02}, last{Initial::Kind::normal, 0.02, true};
    return {.type = "rotary_attention",
            // What the shapes of the parameters do not tell: it is part of the model's fingerprint.
            .details = "heads " + std::to_string(s.heads) + ", base " + std::to_string(s.base),
            .parameters = {norm_weight(hidden_size),
                           {"qkv", {3 * hidden_size, hidden_size}, normal},
                           {"project", {hidden_size, hidden_size}, last}},
            .multiply_adds = [hidden_size](const std::vector<std::int64_t>& shape) {
              return 4 * shape[0] * hidden_size * hidden_size + 2 * shape[0] * shape[0] * hidden_size;
            }};
  }
  /// q, k or v of [samples, tokens, 3, heads, d], as [samples, heads, tokens, d].
  static at::Tensor of(const at::Tensor& qkv, std::int64_t which) {
    return qkv.select(2, which).transpose(1, 2);
  }
  static double root(const at::Tensor& q) { return std::sqrt(static_cast<double>(q.size(3))); }

  std::int64_t heads_;
  double base_;
  stagecraft::MatrixProducts products_;
};

}  // namespace

void describe(stagecraft::Fields& f, RotaryAttention& s) {
  f.required("heads", s.heads, "attention heads; twice their number divides the width",
             stagecraft::json::at_least(1));
  f.optional("base", s.base, "of the rotation frequencies", stagecraft::json::above(1));
}

stagecraft::LayerPtr make(const RotaryAttention& s, const stagecraft::LayerSite& site) {
  if (site.input_dtype == at::kLong || site.input.size() != 2)
    site.refuse("rotary_attention takes [tokens, width]");
  if (site.input[1] % (2 * s.heads) != 0) {
    site.refuse("a width that is a multiple of 2 * heads, " + std::to_string(2 * s.heads));
  }
  return std::make_shared<RotaryAttentionLayer>(site, s);
}

}  // namespace llama
