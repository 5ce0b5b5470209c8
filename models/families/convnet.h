#pragma once

#include "models/families/registry.h"

namespace stagecraft {

/// VGG-style: groups of 3x3 convolution, batch norm, ReLU, each group ending in 2x2 max pooling, then a
/// classifier.
struct ConvnetConfig {
  static constexpr const char* kName = "convnet";
  std::vector<std::vector<std::int64_t>> groups{{32, 32}, {64, 64}};
  std::vector<std::int64_t> classifier{256};
  double dropout = 0;
};
void describe(Fields& f, ConvnetConfig& c);
[[nodiscard]] LayerList expand(const ConvnetConfig& config, const ModelSite& site);

}  // namespace stagecraft
