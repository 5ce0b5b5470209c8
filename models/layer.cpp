#include "stagecraft/models/layer.h"

#include "stagecraft/base/error.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

const at::Tensor& only(const Bundle& bundle, const Layer& layer) {
  STAGECRAFT_CHECK(bundle.size() == 1,
                   fmt::format("layer {} takes one tensor, not {}", layer.name(), bundle.size()));
  return bundle.front();
}

}  // namespace

Bundle Layer::forward_bundle(const Weights& weights, const Bundle& inputs, const Context& context,
                             Kept* kept) const {
  return {forward(weights, only(inputs, *this), context, kept)};
}

Bundle Layer::backward_bundle(const Tensors& parameters, const Bundle& gradients, Kept& kept,
                              bool needs_input_gradient) const {
  at::Tensor gradient = backward_input(parameters, only(gradients, *this), kept, needs_input_gradient);
  if (!needs_input_gradient) return {};
  return {std::move(gradient)};
}

}  // namespace stagecraft
