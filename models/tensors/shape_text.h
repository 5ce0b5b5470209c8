#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace stagecraft {

/// "[32, 14, 14]"
[[nodiscard]] std::string shape_text(at::IntArrayRef shape);

}  // namespace stagecraft
