#pragma once

#include "models/losses/loss.h"

namespace stagecraft {

/// An output of any shape against as many numbers.
struct MeanSquaredError {
  static constexpr const char* kName = "mse";
};
void describe(Fields& f, MeanSquaredError& settings);
[[nodiscard]] std::shared_ptr<const Loss> make_loss(const MeanSquaredError& settings, Reduction reduction);

}  // namespace stagecraft
