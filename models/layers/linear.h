#pragma once

#include "models/layers/site.h"

namespace stagecraft {

/// y = x W^T + b over the last dimension. Keeps x and, I->W, dy.
struct LinearSpec {
  static constexpr const char* kName = "linear";
  std::int64_t features = 1;
  bool bias = true;
};
void describe(Fields& v, LinearSpec& s);
[[nodiscard]] LayerPtr make_layer(const LinearSpec& spec, const LayerSite& site);

}  // namespace stagecraft
