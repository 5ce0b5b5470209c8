#pragma once

#include "models/layers/layer.h"

#include <functional>
#include <vector>

namespace stagecraft::captured {

/// A layer for samples of one length.
struct LengthForm {
  LayerPtr layer;
  /// Whether it was captured for what a forward reads. `fields`: null in a dry pass, which knows none.
  std::function<bool(const Bundle& inputs, const FieldTensors* fields)> takes;
};

/// One layer of a form for each length, the whole length's first. Each forward takes the first form that was
/// captured for what it reads, and its backward the same; where none was, the first form says what does not fit.
/// Requires a form at least, and forms of one name, with equal parameters, buffers and fields.
[[nodiscard]] LayerPtr layer_of_lengths(std::vector<LengthForm> forms);

}  // namespace stagecraft::captured
