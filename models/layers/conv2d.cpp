#include "models/layers/conv2d.h"

#include "models/layers/functional.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace stagecraft {
namespace {

class Conv2d : public Layer {
 public:
  Conv2d(const std::string& name, const Conv2dSpec& spec, std::vector<ParameterSpec> parameters)
      : Layer(name, facts_of(name, spec, std::move(parameters))), spec_(spec) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context&,
                     Kept* kept) const override {
    if (input.is_meta()) {
      return at::empty(
          {input.size(0), spec_.channels, extent(spec_, input.size(2)), extent(spec_, input.size(3))},
          input.options());
    }
    if (kept != nullptr) kept->for_weight = {input};
    const at::Tensor bias = spec_.bias ? weights.parameters[1] : at::Tensor();
    return at::convolution(input, weights.parameters[0], bias, stride(), padding(), kDilation, false,
                           kNoPadding, 1);
  }

  at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    // The weight takes part in backward_weight by its shape alone.
    kept.for_weight.push_back(grad_output);
    kept.for_weight.push_back(parameters[0].new_empty({1}).expand(parameters[0].sizes()));
    if (!needs_input_gradient) return {};
    return std::get<0>(backward(grad_output, kept.for_weight[0], parameters[0], {true, false, false}));
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    const auto [input, grad_output, weight] = functional::take<3>(kept.for_weight);
    const auto [none, dw, db] = backward(grad_output, input, weight, {false, true, spec_.bias});
    sink.add(0, dw);
    if (spec_.bias) sink.add(1, db);
  }

 private:
  static LayerFacts facts_of(const std::string& name, const Conv2dSpec& spec,
                             std::vector<ParameterSpec> parameters) {
    const std::int64_t per_pixel = c10::multiply_integers(parameters[0].shape);
    return {
        .type = Conv2dSpec::kName,
        .details = fmt::format("kernel {}, stride {}, padding {}{}", spec.kernel, spec.stride, spec.padding,
                               spec.bias ? "" : ", no bias"),
        .parameters = std::move(parameters),
        .number_checks = {{.finite = true, .reader = fmt::format("layer {} ({})", name, Conv2dSpec::kName)}},
        .multiply_adds = [spec, per_pixel](const std::vector<std::int64_t>& shape) {
          return per_pixel * extent(spec, shape[1]) * extent(spec, shape[2]);
        }};
  }
  static std::int64_t extent(const Conv2dSpec& spec, std::int64_t pixels) {
    return (pixels + 2 * spec.padding - spec.kernel) / spec.stride + 1;
  }

  using Pair = std::array<std::int64_t, 2>;
  static constexpr Pair kDilation{1, 1}, kNoPadding{0, 0};
  Pair stride() const { return {spec_.stride, spec_.stride}; }
  Pair padding() const { return {spec_.padding, spec_.padding}; }

  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad_output,
                                                          const at::Tensor& input, const at::Tensor& weight,
                                                          std::array<bool, 3> wanted) const {
    const Pair bias_size{spec_.channels, 0};
    return at::convolution_backward(grad_output, input, weight, at::IntArrayRef(bias_size.data(), 1),
                                    stride(), padding(), kDilation, false, kNoPadding, 1, wanted);
  }

  Conv2dSpec spec_;
};

}  // namespace

void describe(Fields& v, Conv2dSpec& s) {
  v.required("channels", s.channels, "output channels", json::at_least(1));
  v.optional("kernel", s.kernel, "height and width", json::at_least(1));
  v.optional("stride", s.stride, "both ways", json::at_least(1));
  v.optional("padding", s.padding, "on every side", json::at_least(0));
  v.optional("bias", s.bias, "add a bias");
}

LayerPtr make_layer(const Conv2dSpec& spec, const LayerSite& site) {
  if (site.input_dtype == at::kLong || site.input.size() != 3)
    site.refuse("conv2d takes [channels, height, width]");
  const std::int64_t smallest = std::min(site.input[1], site.input[2]) + 2 * spec.padding;
  if (smallest < spec.kernel) {
    site.refuse(
        fmt::format("a {0}x{0} kernel does not fit into it with padding {1}", spec.kernel, spec.padding));
  }
  const auto fan_in = static_cast<double>(site.input[0] * spec.kernel * spec.kernel);
  const Initial uniform{Initial::Kind::uniform, 1 / std::sqrt(fan_in)};  // PyTorch's default
  std::vector<ParameterSpec> parameters{
      {"weight", {spec.channels, site.input[0], spec.kernel, spec.kernel}, uniform}};
  if (spec.bias) parameters.push_back({"bias", {spec.channels}, uniform});
  return std::make_shared<Conv2d>(site.name, spec, std::move(parameters));
}

}  // namespace stagecraft
