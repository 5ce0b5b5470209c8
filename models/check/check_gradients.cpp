#include "models/check/check_gradients.h"

#include "base/error.h"
#include "models/check/layer_check.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft {

namespace {

void require_passed(const Layer& layer, const at::Tensor& input, at::ScalarType dtype) {
  LayerTrial trial;
  trial.precision = dtype;
  const at::Tensor first = input.is_floating_point() ? input.to(dtype) : input;
  trial.first.inputs = {first};
  // Other values, and one sample more.
  trial.second.inputs = {at::cat({first, first.narrow(0, 0, 1)}).roll(1, 0)};
  const LayerChecked checked = check_layer(layer, trial);
  if (checked.passed()) return;
  throw InternalError(
      fmt::format("{} ({}): {}", layer.name(), layer.facts().type, fmt::join(checked.failures(), "; ")));
}

}  // namespace

void check_gradients(const Layer& layer, const at::Tensor& input) {
  require_passed(layer, input, at::kDouble);
  // A captured graph computes in the types that it was captured in.
  if (layer.facts().cost_class.empty()) require_passed(layer, input, at::kFloat);
}

}  // namespace stagecraft
