#pragma once

#include "models/layers/site.h"

namespace stagecraft {

/// Keeps the positions of the maxima.
struct MaxPoolSpec {
  static constexpr const char* kName = "max_pool";
  std::int64_t kernel = 2;
  std::int64_t stride = 2;
};
void describe(Fields& v, MaxPoolSpec& s);
[[nodiscard]] LayerPtr make_layer(const MaxPoolSpec& spec, const LayerSite& site);

}  // namespace stagecraft
