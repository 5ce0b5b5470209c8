#pragma once

// A layer that makes numbers that are not finite, or fails, in steps that a test chooses. It is a layer like any other,
// a bias, so that a pipelined run and the oracle get the same numbers at the same place.

#include "models/model.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::test {

/// In the first micro-batch of a step.
struct Planted {
  enum class Where : std::uint8_t {
    output,           ///< the layer's, and so the loss and all gradients
    input_gradient,   ///< and so the gradients of the layers before
    weight_gradient,  ///< its own alone
    failure,          ///< its forward throws
    weight_failure    ///< the half of its backward throws that makes its weights' gradients
  };
  std::int64_t step = 0;
  Where where = Where::output;
  double value = 0;
};

/// Puts the layer "planted", whose one parameter is "bias", in front of layer `at` of the model.
void plant(Model& model, int at, std::vector<Planted> planted);

/// " planted output nan at step 2 before layer 3", for the names of cases.
[[nodiscard]] std::string planted_words(const std::vector<Planted>& planted, int at);

}  // namespace stagecraft::test
