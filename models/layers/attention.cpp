#include "models/layers/attention.h"

#include "models/layers/causal_attention.h"
#include "models/layers/dropout_masks.h"
#include "models/layers/functional.h"

#include <fmt/format.h>

#include <utility>

namespace stagecraft {
namespace {

using namespace functional;  // NOLINT: the formulas read as such

class Attention : public Layer {
 public:
  Attention(const LayerSite& site, const AttentionSpec& spec, std::int64_t hidden_size)
      : Layer(site.name, facts_of(spec, hidden_size)),
        products_(site.products),
        dropout_(spec.dropout),
        attention_(spec.heads, spec.attention_dropout) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& x, const Context& context,
                     Kept* kept) const override {
    const Tensors& p = weights.parameters;
    auto [normed, mean, rstd] = layer_norm(x, p[kNormWeight], p[kNormBias], kLayerNormEpsilon);
    const at::Tensor qkv = linear(normed, p[kQkvWeight], p[kQkvBias], products_);
    auto [mixed, attention_kept] = attention_.forward(qkv, context);
    at::Tensor y = linear(mixed, p[kProjectWeight], p[kProjectBias], products_);
    at::Tensor mask;
    if (dropout_.applies(context)) mask = dropout_.drop_(y, context.key);
    y.add_(x);
    if (kept != nullptr) {
      kept->for_input = std::move(attention_kept);
      for (at::Tensor* t : {&mean, &rstd, &mask}) kept->for_input.push_back(std::move(*t));
      kept->for_input.push_back(x);
      kept->for_weight = {std::move(normed), std::move(mixed)};
    }
    return y;
  }

  at::Tensor backward_input(const Tensors& p, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    Tensors own(std::make_move_iterator(kept.for_input.end() - 4),
                std::make_move_iterator(kept.for_input.end()));
    const auto [mean, rstd, mask, x] = take<4>(own);
    kept.for_input.resize(kept.for_input.size() - 4);
    auto [normed, mixed] = take<2>(kept.for_weight);
    at::Tensor dy = mask.defined() ? dropout_.apply(grad_output, mask) : grad_output;
    const at::Tensor dmixed = linear_grad_input(dy, p[kProjectWeight], products_);
    at::Tensor dqkv = attention_.backward(dmixed, mixed, std::exchange(kept.for_input, {}));
    const at::Tensor dnormed = linear_grad_input(dqkv, p[kQkvWeight], products_);
    auto [dx, dweight, dbias] =
        layer_norm_backward(dnormed, x, mean, rstd, p[kNormWeight], p[kNormBias], needs_input_gradient);
    if (needs_input_gradient) dx.add_(grad_output);
    kept.for_weight = {std::move(dweight), std::move(dbias), std::move(normed),
                       std::move(dqkv),    std::move(mixed), std::move(dy)};
    return dx;
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    const auto [dweight, dbias, normed, dqkv, mixed, dy] = take<6>(kept.for_weight);
    sink.add(kNormWeight, dweight);
    sink.add(kNormBias, dbias);
    linear_grad_weight(sink, kQkvWeight, kQkvBias, dqkv, normed);
    linear_grad_weight(sink, kProjectWeight, kProjectBias, dy, mixed);
  }

 private:
  enum { kNormWeight, kNormBias, kQkvWeight, kQkvBias, kProjectWeight, kProjectBias };

  static LayerFacts facts_of(const AttentionSpec& spec, std::int64_t hidden_size) {
    const Initial normal{Initial::Kind::normal, 0.02}, residual{Initial::Kind::normal, 0.02, true};
    return {
        .type = AttentionSpec::kName,
        .details = fmt::format("heads {}, dropout {}, attention dropout {}", spec.heads, spec.dropout,
                               spec.attention_dropout),
        .parameters = {norm_scale("norm.weight", hidden_size),
                       norm_shift("norm.bias", hidden_size),
                       {"qkv.weight", {3 * hidden_size, hidden_size}, normal},
                       {"qkv.bias", {3 * hidden_size}, {}},
                       {"project.weight", {hidden_size, hidden_size}, residual},
                       {"project.bias", {hidden_size}, {}}},
        // Scores and mixing are counted whole, though half of them lie in the future and kernels leave them out.
        .multiply_adds = [](const std::vector<std::int64_t>& shape) {
          const std::int64_t tokens = shape[0], width = shape[1];
          return 4 * tokens * width * width + 2 * tokens * tokens * width;
        }};
  }

  MatrixProducts products_;
  Dropout dropout_;
  CausalAttention attention_;
};

}  // namespace

void describe(Fields& v, AttentionSpec& s) {
  v.required("heads", s.heads, "divides the width", json::at_least(1));
  v.optional("dropout", s.dropout, "of the branch", json::from_up_to(0, 1));
  v.optional("attention_dropout", s.attention_dropout, "of attention weights", json::from_up_to(0, 1));
}

LayerPtr make_layer(const AttentionSpec& spec, const LayerSite& site) {
  if (site.input_dtype == at::kLong || site.input.size() != 2) site.refuse("attention takes [tokens, width]");
  const std::int64_t hidden_size = site.input[1];
  if (hidden_size % spec.heads != 0) {
    site.refuse(fmt::format("width {} is not a multiple of heads {}", hidden_size, spec.heads));
  }
  return std::make_shared<Attention>(site, spec, hidden_size);
}

}  // namespace stagecraft
