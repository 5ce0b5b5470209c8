#include "models/layers/feed_forward.h"

#include "models/layers/dropout_masks.h"
#include "models/layers/functional.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <utility>

namespace stagecraft {
namespace {

using namespace functional;  // NOLINT: the formulas read as such

class FeedForward : public Layer {
 public:
  FeedForward(const LayerSite& site, std::int64_t hidden_size, std::int64_t hidden, double dropout)
      : Layer(site.name, facts_of(hidden_size, hidden, dropout)),
        products_(site.products),
        dropout_(dropout) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& x, const Context& context,
                     Kept* kept) const override {
    const Tensors& p = weights.parameters;
    auto [normed, mean, rstd] = layer_norm(x, p[kNormWeight], p[kNormBias], kLayerNormEpsilon);
    at::Tensor expanded = linear(normed, p[kExpandWeight], p[kExpandBias], products_);
    at::Tensor active = at::gelu(expanded);
    at::Tensor y = linear(active, p[kProjectWeight], p[kProjectBias], products_);
    at::Tensor mask;
    if (dropout_.applies(context)) mask = dropout_.drop_(y, context.key);
    y.add_(x);
    if (kept != nullptr) {
      kept->for_input = {x, std::move(mean), std::move(rstd), std::move(expanded), std::move(mask)};
      kept->for_weight = {std::move(normed), std::move(active)};
    }
    return y;
  }

  at::Tensor backward_input(const Tensors& p, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    const auto [x, mean, rstd, expanded, mask] = take<5>(kept.for_input);
    auto [normed, active] = take<2>(kept.for_weight);
    at::Tensor dy = mask.defined() ? dropout_.apply(grad_output, mask) : grad_output;
    at::Tensor dexpanded = at::gelu_backward(linear_grad_input(dy, p[kProjectWeight], products_), expanded);
    at::Tensor dnormed = linear_grad_input(dexpanded, p[kExpandWeight], products_);
    auto [dx, dweight, dbias] =
        layer_norm_backward(dnormed, x, mean, rstd, p[kNormWeight], p[kNormBias], needs_input_gradient);
    if (needs_input_gradient) dx.add_(grad_output);
    kept.for_weight = {std::move(dweight),   std::move(dbias),  std::move(normed),
                       std::move(dexpanded), std::move(active), std::move(dy)};
    return dx;
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    const auto [dweight, dbias, normed, dexpanded, active, dy] = take<6>(kept.for_weight);
    sink.add(kNormWeight, dweight);
    sink.add(kNormBias, dbias);
    linear_grad_weight(sink, kExpandWeight, kExpandBias, dexpanded, normed);
    linear_grad_weight(sink, kProjectWeight, kProjectBias, dy, active);
  }

 private:
  enum { kNormWeight, kNormBias, kExpandWeight, kExpandBias, kProjectWeight, kProjectBias };

  static LayerFacts facts_of(std::int64_t hidden_size, std::int64_t hidden, double dropout) {
    const Initial normal{Initial::Kind::normal, 0.02}, residual{Initial::Kind::normal, 0.02, true};
    return {.type = FeedForwardSpec::kName,
            .details = fmt::format("dropout {}", dropout),
            .parameters = {norm_scale("norm.weight", hidden_size),
                           norm_shift("norm.bias", hidden_size),
                           {"expand.weight", {hidden, hidden_size}, normal},
                           {"expand.bias", {hidden}, {}},
                           {"project.weight", {hidden_size, hidden}, residual},
                           {"project.bias", {hidden_size}, {}}},
            .multiply_adds = [hidden](const std::vector<std::int64_t>& shape) {
              return 2 * c10::multiply_integers(shape) * hidden;
            }};
  }

  MatrixProducts products_;
  Dropout dropout_;
};

}  // namespace

void describe(Fields& v, FeedForwardSpec& s) {
  v.optional("hidden", s.hidden, "0: 4 * width", json::at_least(0));
  v.optional("dropout", s.dropout, "of the branch", json::from_up_to(0, 1));
}

LayerPtr make_layer(const FeedForwardSpec& spec, const LayerSite& site) {
  if (site.input_dtype == at::kLong || site.input.size() != 2)
    site.refuse("feed_forward takes [tokens, width]");
  const std::int64_t hidden_size = site.input[1];
  return std::make_shared<FeedForward>(site, hidden_size, spec.hidden > 0 ? spec.hidden : 4 * hidden_size,
                                       spec.dropout);
}

}  // namespace stagecraft
