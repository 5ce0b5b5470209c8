#pragma once

// What a micro-batch leaves on a stage between its forward and its backward.

#include "models/layers/layer.h"

#include <vector>

namespace stagecraft {

/// The last stage's part of a forward.
struct LossTask {
  at::Tensor targets;
  double share = 1;      ///< of the mini-batch
  bool follows = false;  ///< there is such a part
};

struct InFlight {
  std::vector<Kept> layers;
  Kept loss;
  Bundle input;  ///< recomputed ones only, and so is the next
  LossTask loss_task;
  FieldTensors fields;

  /// Lets every tensor go.
  void clear() {
    for (Kept& kept : layers) {
      kept.clear();
      kept.form = 0;
    }
    loss.clear();
    input.clear();
    loss_task = {};
    fields.clear();
  }
};

/// Visits every tensor, in an order that depends on how many there are alone.
template <class Work, class Visit>
void for_each_tensor(Work& work, const Visit& visit) {
  const auto each = [&](auto& kept) {
    for (auto& tensor : kept.for_input) visit(tensor);
    for (auto& tensor : kept.for_weight) visit(tensor);
  };
  for (auto& kept : work.layers) each(kept);
  each(work.loss);
  for (auto& value : work.input) visit(value);
  visit(work.loss_task.targets);
  for (auto& field : work.fields) visit(field.second);
}

}  // namespace stagecraft
