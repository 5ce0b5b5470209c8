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
  std::vector<at::ScalarType> read;
  if (from.is_floating_point()) read.push_back(from.scalar_type());
  for (const at::Tensor& parameter : parameters) read.push_back(parameter.scalar_type());
  const bool reads_double = std::find(read.begin(), read.end(), at::kDouble) != read.end();
  if (read.empty() || reads_double == (tensor.scalar_type() == at::kDouble)) return tensor;
  throw InternalError(
      fmt::format("{} is of {}, made of {}: it has to be of the type that the run computes in", what,
                  c10::toString(tensor.scalar_type()), c10::toString(read.front())));
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
