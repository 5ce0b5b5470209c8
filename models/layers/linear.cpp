#include "models/layers/linear.h"

#include "models/layers/functional.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace stagecraft {
namespace {

class Linear : public Layer {
 public:
  Linear(const LayerSite& site, std::vector<ParameterSpec> parameters)
      : Layer(site.name, facts_of(site.name, std::move(parameters))),
        bias_(this->parameters().size() > 1),
        products_(site.products) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context&,
                     Kept* kept) const override {
    if (kept != nullptr) kept->for_weight = {input};
    return functional::linear(input, weights.parameters[0], bias_ ? weights.parameters[1] : at::Tensor(),
                              products_);
  }

  at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    kept.for_weight.push_back(grad_output);
    if (!needs_input_gradient) return {};
    return functional::linear_grad_input(grad_output, parameters[0], products_);
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    const auto [input, grad_output] = functional::take<2>(kept.for_weight);
    functional::linear_grad_weight(sink, 0, bias_ ? 1 : -1, grad_output, input);
  }

 private:
  static LayerFacts facts_of(const std::string& name, std::vector<ParameterSpec> parameters) {
    const std::int64_t features = parameters[0].shape[0];
    return {
        .type = LinearSpec::kName,
        .details = parameters.size() > 1 ? "" : "no bias",
        .parameters = std::move(parameters),
        .number_checks = {{.finite = true, .reader = fmt::format("layer {} ({})", name, LinearSpec::kName)}},
        .multiply_adds = [features](const std::vector<std::int64_t>& shape) {
          return c10::multiply_integers(shape) * features;
        }};
  }

  bool bias_;
  MatrixProducts products_;
};

}  // namespace

void describe(Fields& v, LinearSpec& s) {
  v.required("features", s.features, "outputs", json::at_least(1));
  v.optional("bias", s.bias, "add a bias");
}

LayerPtr make_layer(const LinearSpec& spec, const LayerSite& site) {
  if (site.input_dtype == at::kLong)
    site.refuse("linear takes numbers, these are tokens; put an embedding before it");
  if (site.input.empty() || site.input.size() > 2) {
    site.refuse("linear takes [features] or [tokens, width]; put a flatten before it");
  }
  const std::int64_t inputs = site.input.back();
  const double bound = 1 / std::sqrt(static_cast<double>(inputs));
  const Initial uniform{Initial::Kind::uniform, bound};
  const bool normal = site.linear_deviation > 0;
  std::vector<ParameterSpec> parameters{
      {"weight",
       {spec.features, inputs},
       normal ? Initial{Initial::Kind::normal, site.linear_deviation} : uniform}};
  if (spec.bias) parameters.push_back({"bias", {spec.features}, normal ? Initial{} : uniform});
  return std::make_shared<Linear>(site, std::move(parameters));
}

}  // namespace stagecraft
