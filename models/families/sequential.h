#pragma once

#include "models/families/registry.h"

namespace stagecraft {

/// An explicit list of layers.
struct SequentialConfig {
  static constexpr const char* kName = "sequential";
  std::vector<LayerSpec> layers;
};
void describe(Fields& f, SequentialConfig& c);
[[nodiscard]] LayerList expand(const SequentialConfig& config, const ModelSite& site);

}  // namespace stagecraft
