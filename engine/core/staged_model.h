#pragma once

// A model cut into stages, as every part of a worker sees it.

#include "models/losses/loss.h"
#include "models/model.h"

#include <utility>
#include <vector>

namespace stagecraft {

struct StagedModel {
  const Model& model;
  const Loss& loss;
  std::vector<std::pair<int, int>> stage_layers;  ///< [first, last) of every stage of the model
  std::vector<int> parameter_counts;              ///< parameter tensors of every stage
};

/// Both outlive what is returned.
[[nodiscard]] inline StagedModel staged(const Model& model, const Loss& loss,
                                        const std::vector<std::pair<int, int>>& stage_layers) {
  StagedModel made{model, loss, stage_layers, {}};
  for (const auto& [first, last] : stage_layers) {
    int count = 0;
    for (int layer = first; layer < last; ++layer) {
      count += static_cast<int>(model.layers[static_cast<std::size_t>(layer)]->parameters().size());
    }
    made.parameter_counts.push_back(count);
  }
  return made;
}

}  // namespace stagecraft
