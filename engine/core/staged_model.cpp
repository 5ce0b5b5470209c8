#include "engine/core/staged_model.h"

#include <algorithm>

namespace stagecraft {

StagedModel staged(const Model& model, const Loss& loss,
                   const std::vector<std::pair<int, int>>& stage_layers) {
  StagedModel made{model, loss, stage_layers, {}, {}};
  struct Counted {
    std::int64_t place, at;
  };
  std::vector<Counted> counted;
  std::int64_t at = 0;
  for (const auto& [first, last] : stage_layers) {
    const std::int64_t before = at;
    for (int layer = first; layer < last; ++layer) {
      int parameter = 0;
      for (const ParameterSpec& spec : model.layers[static_cast<std::size_t>(layer)]->parameters()) {
        if (model.owns(layer, parameter++)) counted.push_back({spec.place, at});
        ++at;
      }
    }
    made.parameter_counts.push_back(static_cast<int>(at - before));
  }
  std::ranges::stable_sort(counted, {}, &Counted::place);
  for (const Counted& each : counted) made.norm_order.push_back(each.at);
  return made;
}

}  // namespace stagecraft
