#include "engine/core/overflow.h"

#include "base/error.h"
#include "models/model.h"

#include <fmt/format.h>

#include <cmath>

namespace stagecraft {

std::string layer_words(const Model& model, const std::vector<std::pair<int, int>>& stage_layers, int layer) {
  std::size_t stage = 0;
  while (stage + 1 < stage_layers.size() && stage_layers[stage].second <= layer) ++stage;
  return fmt::format("layer {} (stage {})", model.layers[static_cast<std::size_t>(layer)]->name(), stage);
}

NotFiniteError gradient_not_finite(const Model& model, const std::vector<std::pair<int, int>>& stage_layers,
                                   std::int64_t step, std::size_t parameter, double norm) {
  if (std::isfinite(norm)) {
    return {
        step,
        "the norm of the gradient is not finite, although each tensor's is. The run stops before this step",
        /*skip_helps=*/true};
  }
  for (std::size_t layer = 0; layer < model.layers.size(); ++layer) {
    const std::vector<ParameterSpec>& parameters = model.layers[layer]->parameters();
    if (parameter < parameters.size()) {
      const std::string where = layer_words(model, stage_layers, static_cast<int>(layer));
      return {
          step,
          fmt::format("the gradient of {} in {} is not finite (its norm is {}). The run stops before this "
                      "step",
                      parameters[parameter].name, where, std::isnan(norm) ? "nan" : "inf"),
          /*skip_helps=*/true};
    }
    parameter -= parameters.size();
  }
  throw InternalError("a gradient of no parameter");
}

NotFiniteError too_many_skips(std::int64_t step, StageId stage) {
  return {
      step,
      fmt::format("the gradient was not finite in {} steps in a row (stage {}), and all of them were left "
                  "out. The run stops, since nothing is learned any more",
                  kMostSkipsInARow, stage.value),
      /*skip_helps=*/false};
}

}  // namespace stagecraft
