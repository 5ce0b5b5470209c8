#include "rms_norm.h"

#include "llama.h"

namespace llama {
namespace {

using stagecraft::Context, stagecraft::GradientSink, stagecraft::Kept, stagecraft::Layer, stagecraft::Tensors,
    stagecraft::Weights;

class RmsNormLayer final : public Layer {
 public:
  RmsNormLayer(const std::string& name, std::int64_t hidden_size, double epsilon)
      : Layer(name, {.type = "rms_norm", .parameters = {norm_weight(hidden_size)}}), epsilon_(epsilon) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context&,
                     Kept* kept) const override {
    auto [output, normal, scale] = rms_norm(input, weights.parameters[0], epsilon_);
    if (kept != nullptr) kept->for_input = {normal, scale};
    return output;
  }

  at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output, Kept& kept,
                            bool) const override {
    const auto [normal, scale] = stagecraft::functional::take<2>(kept.for_input);
    auto [grad_input, grad_weight] = rms_norm_backward(grad_output, normal, scale, parameters[0]);
    kept.for_weight = {grad_weight};
    return grad_input;
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    const auto [grad_weight] = stagecraft::functional::take<1>(kept.for_weight);
    sink.add(0, grad_weight);
  }

 private:
  double epsilon_;
};

}  // namespace

void describe(stagecraft::Fields& f, RmsNorm& s) {
  f.optional("epsilon", s.epsilon, "added to the mean square", stagecraft::json::above(0));
}

stagecraft::LayerPtr make(const RmsNorm& s, const stagecraft::LayerSite& site) {
  if (site.input_dtype == at::kLong || site.input.empty())
    site.refuse("rms_norm takes numbers, [..., width]");
  return std::make_shared<RmsNormLayer>(site.name, site.input.back(), s.epsilon);
}

}  // namespace llama
