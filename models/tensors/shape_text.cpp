#include "models/tensors/shape_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft {

std::string shape_text(at::IntArrayRef shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace stagecraft
