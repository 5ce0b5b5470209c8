#include "models/layers/layer_norm.h"

#include "models/layers/functional.h"

#include <fmt/format.h>

#include <utility>

namespace stagecraft {
namespace {

class LayerNorm : public Layer {
 public:
  LayerNorm(std::string name, const LayerNormSpec& spec, std::int64_t hidden_size)
      : Layer(std::move(name), {.type = LayerNormSpec::kName,
                                .details = fmt::format("epsilon {}", spec.epsilon),
                                .parameters = {functional::norm_scale("weight", hidden_size),
                                               functional::norm_shift("bias", hidden_size)}}),
        spec_(spec) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context&,
                     Kept* kept) const override {
    auto [output, mean, rstd] =
        functional::layer_norm(input, weights.parameters[0], weights.parameters[1], spec_.epsilon);
    if (kept != nullptr) kept->for_input = {input, std::move(mean), std::move(rstd)};
    return output;
  }

  at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    const auto [input, mean, rstd] = functional::take<3>(kept.for_input);
    auto [dx, dweight, dbias] = functional::layer_norm_backward(grad_output, input, mean, rstd, parameters[0],
                                                                parameters[1], needs_input_gradient);
    kept.for_weight = {std::move(dweight), std::move(dbias)};
    return dx;
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    const auto [dweight, dbias] = functional::take<2>(kept.for_weight);
    sink.add(0, dweight);
    sink.add(1, dbias);
  }

 private:
  LayerNormSpec spec_;
};

}  // namespace

void describe(Fields& v, LayerNormSpec& s) {
  v.optional("epsilon", s.epsilon, "added to the variance", json::above(0));
}

LayerPtr make_layer(const LayerNormSpec& spec, const LayerSite& site) {
  if (site.input_dtype == at::kLong || site.input.empty())
    site.refuse("layer_norm takes numbers, [..., width]");
  return std::make_shared<LayerNorm>(site.name, spec, site.input.back());
}

}  // namespace stagecraft
