#pragma once

#include "models/layers/layer.h"

#include <string>

namespace stagecraft {

/// Names a layer's work for messages: "layer "head" (linear), forward of [8, 16], with weight [4, 16]". `of`
/// may be undefined.
[[nodiscard]] std::string work_text(const Layer& layer, const char* work, const at::Tensor& of = {});

}  // namespace stagecraft
