#pragma once

// A model cut into stages, as every part of a worker sees it.

#include "models/losses/loss.h"
#include "models/model.h"

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace stagecraft {

struct StagedModel {
  const Model& model;
  const Loss& loss;
  std::vector<std::pair<int, int>> stage_layers;  ///< [first, last) of every stage of the model
  std::vector<int> parameter_counts;              ///< parameter tensors of every stage
  /// Places of parameters among all stages', in the order of PyTorch's parameters(): those that the gradient's norm
  /// is made of. Tied weights are there once.
  std::vector<std::int64_t> norm_order;

  [[nodiscard]] int parameters() const {
    return std::accumulate(parameter_counts.begin(), parameter_counts.end(), 0);
  }
};

/// Both outlive what is returned.
[[nodiscard]] StagedModel staged(const Model& model, const Loss& loss,
                                 const std::vector<std::pair<int, int>>& stage_layers);

}  // namespace stagecraft
