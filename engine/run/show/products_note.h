#pragma once

#include "engine/run/resolve/resolve.h"
#include "models/tensors/matrix_products.h"

#include <string>

namespace stagecraft {

/// What a run whose float32 products are the BLAS's gains from oneDNN's, and what that costs, where these rates
/// say that it is much; otherwise "".
[[nodiscard]] std::string products_note(const ProductRates& rates);

/// The same of `run`, measured now in some 0.1 s: of one on the CPU that begins, takes minutes, and
/// leaves the choice to us. Otherwise "".
[[nodiscard]] std::string products_note(const ResolvedRun& run);

}  // namespace stagecraft
