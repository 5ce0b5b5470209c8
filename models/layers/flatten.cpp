#include "models/layers/flatten.h"

#include <utility>

namespace stagecraft {
namespace {

class Flatten : public Layer {
 public:
  Flatten(std::string name, std::vector<std::int64_t> shape)
      : Layer(std::move(name), {.type = FlattenSpec::kName, .carries = {0}}), shape_(std::move(shape)) {}

  at::Tensor forward(const Weights&, const at::Tensor& input, const Context&, Kept*) const override {
    return input.reshape({input.size(0), -1});
  }

  at::Tensor backward_input(const Tensors&, const at::Tensor& grad_output, Kept&,
                            bool needs_input_gradient) const override {
    if (!needs_input_gradient) return {};
    std::vector<std::int64_t> shape{grad_output.size(0)};
    shape.insert(shape.end(), shape_.begin(), shape_.end());
    return grad_output.reshape(shape);
  }

 private:
  std::vector<std::int64_t> shape_;  // of one sample
};

}  // namespace

void describe(Fields&, FlattenSpec&) {}

LayerPtr make_layer(const FlattenSpec&, const LayerSite& site) {
  return std::make_shared<Flatten>(site.name, site.input);
}

}  // namespace stagecraft
