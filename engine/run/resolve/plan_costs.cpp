#include "engine/run/resolve/plan_costs.h"

#include "base/error.h"
#include "engine/run/resolve/plan_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace stagecraft {

void check_known_costs(const Plan& plan, const std::string& file, const Model& model) {
  if (!plan.costs) return;
  const std::vector<std::pair<int, int>> layers = stage_layers(plan, model);
  const std::vector<BoundarySpec> sent = boundaries(model, plan.micro_batch_size);
  for (std::size_t s = 0; s < layers.size(); ++s) {
    const StageCosts& costs = plan.costs->stages.at(s);
    const auto compare = [&](const char* key, Bytes found, Bytes known, const std::string& whose) {
      if (found == known) return;
      throw InputError(
          {file, fmt::format("/costs/stages/{}/{}", s, key)},
          fmt::format("expected {}, as {} of {} have, found {}; memory is proved from these costs: make "
                      "the plan again",
                      known.value, whose, model.name, found.value));
    };
    Bytes weights;
    for (int layer = layers[s].first; layer < layers[s].second; ++layer)
      weights = std::min(kMostParameterBytes, weights + parameter_bytes(model, layer));
    compare("parameter_bytes", costs.parameters, weights,
            fmt::format("layers {} to {}", layers[s].first, layers[s].second - 1));
    const Bytes input{sent[static_cast<std::size_t>(layers[s].first)].bytes()};
    compare("input_bytes", costs.input, input, fmt::format("the values before layer {}", layers[s].first));
    if (s + 1 == layers.size()) continue;
    const Bytes output{sent[static_cast<std::size_t>(layers[s].second)].bytes()};
    compare("output_bytes", costs.output, output,
            fmt::format("the values behind layer {}", layers[s].second - 1));
  }
}

bool follow_optimizer(Plan& plan, const Model& model, const ModelOptimizer& optimizer) {
  if (!plan.costs) return false;
  const std::vector<std::pair<int, int>> layers = stage_layers(plan, model);
  bool changed = false;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    Bytes state;
    for (int layer = layers[s].first; layer < layers[s].second; ++layer)
      state += optimizer.state_bytes(layer);
    changed = std::exchange(plan.costs->stages.at(s).optimizer_state, state) != state || changed;
  }
  if (changed) plan.predicted.reset();
  return changed;
}

}  // namespace stagecraft
