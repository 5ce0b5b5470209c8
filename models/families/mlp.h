#pragma once

#include "models/families/registry.h"

namespace stagecraft {

/// Linear layers with ReLU between; image inputs are flattened.
struct MlpConfig {
  static constexpr const char* kName = "mlp";
  std::vector<std::int64_t> hidden{256, 256};
  double dropout = 0;
};
void describe(Fields& f, MlpConfig& c);
[[nodiscard]] LayerList expand(const MlpConfig& config, const ModelSite& site);

}  // namespace stagecraft
