#include "models/layers/layer.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

const at::Tensor& only(const Bundle& bundle, const Layer& layer) {
  STAGECRAFT_CHECK(bundle.size() == 1,
                   fmt::format("layer {} takes one tensor, not {}", layer.name(), bundle.size()));
  return bundle.front();
}

/// What a layer of one tensor made from `from`. Double precision where the run has none would be found out by the
/// layer behind it, which can do nothing about it.
at::Tensor made(at::Tensor tensor, const at::Tensor& from, const Tensors& parameters, const char* what) {
  if (!tensor.defined()) throw InternalError(fmt::format("{} is an undefined tensor", what));
  if (!tensor.is_floating_point()) return tensor;
  const bool reads_from = from.is_floating_point();
  if (!reads_from && parameters.empty()) return tensor;
  const bool reads_double =
      (reads_from && from.scalar_type() == at::kDouble) ||
      std::any_of(parameters.begin(), parameters.end(),
                  [](const at::Tensor& parameter) { return parameter.scalar_type() == at::kDouble; });
  if (reads_double == (tensor.scalar_type() == at::kDouble)) return tensor;
  const at::ScalarType read = (reads_from ? from : parameters.front()).scalar_type();
  throw InternalError(
      fmt::format("{} is of {}, made of {}: it has to be of the type that the run computes in", what,
                  c10::toString(tensor.scalar_type()), c10::toString(read)));
}

}  // namespace

Bundle Layer::forward_bundle(const Weights& weights, const Bundle& inputs, const Context& context,
                             Kept* kept) const {
  const at::Tensor& input = only(inputs, *this);
  return {made(forward(weights, input, context, kept), input, weights.parameters, "the output")};
}

Bundle Layer::backward_bundle(const Tensors& parameters, const Bundle& gradients, Kept& kept,
                              bool needs_input_gradient) const {
  const at::Tensor& from = only(gradients, *this);
  at::Tensor gradient = backward_input(parameters, from, kept, needs_input_gradient);
  if (!needs_input_gradient) return {};
  return {made(std::move(gradient), from, parameters, "the gradient of the input")};
}

}  // namespace stagecraft
