#include "models/layers/dropout.h"

#include "models/layers/dropout_masks.h"
#include "models/layers/functional.h"

#include <fmt/format.h>

#include <utility>

namespace stagecraft {
namespace {

class DropoutLayer : public Layer {
 public:
  DropoutLayer(std::string name, double probability)
      : Layer(std::move(name),
              {.type = DropoutSpec::kName, .details = fmt::format("probability {}", probability)}),
        dropout_(probability) {}

  at::Tensor forward(const Weights&, const at::Tensor& input, const Context& context,
                     Kept* kept) const override {
    if (!dropout_.applies(context) || input.is_meta()) return input;
    at::Tensor mask = dropout_.mask(input.sizes(), context.key, input.device());
    at::Tensor output = dropout_.apply(input, mask);
    if (kept != nullptr) kept->for_input = {std::move(mask)};
    return output;
  }

  at::Tensor backward_input(const Tensors&, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    if (kept.for_input.empty()) return needs_input_gradient ? grad_output : at::Tensor();
    const auto [mask] = functional::take<1>(kept.for_input);
    return needs_input_gradient ? dropout_.apply(grad_output, mask) : at::Tensor();
  }

 private:
  Dropout dropout_;
};

}  // namespace

void describe(Fields& v, DropoutSpec& s) {
  v.optional("probability", s.probability, "of zeroing an element", json::from_up_to(0, 1));
}

LayerPtr make_layer(const DropoutSpec& spec, const LayerSite& site) {
  if (site.input_dtype == at::kLong) site.refuse("dropout takes numbers, these are tokens");
  return std::make_shared<DropoutLayer>(site.name, spec.probability);
}

}  // namespace stagecraft
