#pragma once

// Frozen weights: layers as they are, but for their parameters, which are buffers that nobody changes. It is how a
// captured model has what its module does not train.

#include "models/model.h"

#include <cstdint>

namespace stagecraft::test {

/// Freezes the model's first `count` layers at the weights they begin with. At least one layer behind them has
/// weights.
void freeze_layers(Model& model, int count, std::uint64_t seed);

}  // namespace stagecraft::test
