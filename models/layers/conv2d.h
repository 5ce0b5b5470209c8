#pragma once

#include "models/layers/site.h"

namespace stagecraft {

/// Over [channels, height, width]. Keeps x and, I->W, dy.
struct Conv2dSpec {
  static constexpr const char* kName = "conv2d";
  std::int64_t channels = 1;
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t padding = 1;
  bool bias = true;
};
void describe(Fields& v, Conv2dSpec& s);
[[nodiscard]] LayerPtr make_layer(const Conv2dSpec& spec, const LayerSite& site);

}  // namespace stagecraft
