#pragma once

// What a data set yields, as models and losses see it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace stagecraft {

/// What a data set's targets are: one class per sample, one class per token, or numbers.
enum class Targets : std::uint8_t { classes, tokens, values };

/// Shape, without the batch dimension, and dtype of what the data set yields.
struct SampleSpec {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  std::int64_t classes = 0;  ///< classes of the targets, vocabulary size, or numbers a regression predicts
  Targets targets = Targets::classes;
};

}  // namespace stagecraft
