#pragma once

// Layers that cost the same, told by their graphs (LayerFacts::cost_class). A profile runs a few of each class and
// gives the others their figures, so that a model of eighty equal blocks is measured as fast as one of three.

#include "models/model.h"
#include "partitioner/plan/profile.h"

#include <cstdint>
#include <vector>

namespace stagecraft {

struct LayerClasses {
  std::vector<bool> left_out;  ///< by layer: not run
  std::vector<std::vector<int>>
      alike;  ///< by layer: those of its class that are run; itself, for one that is

  [[nodiscard]] int count_left_out() const;
};

/// At most `representatives` of each class are run (0: all), the first, the last and those between in equal
/// distances. Only layers whose output is of their input's type are left out, so that the others read what
/// they would read. More are run where the parameters of those that are and their gradients would fit the
/// processor's caches while the whole model's do not: they would be faster than in a run.
[[nodiscard]] LayerClasses layer_classes(const Model& model, int representatives);

/// Gives layers that were left out the bytes of one like them, the median of the medians of those like them,
/// and the largest of their spreads.
void fill_left_out(const LayerClasses& classes, std::vector<LayerProfile>& layers);

}  // namespace stagecraft
