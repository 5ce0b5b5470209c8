#pragma once

#include "models/layers/site.h"

namespace stagecraft {

/// Keeps one byte per element.
struct DropoutSpec {
  static constexpr const char* kName = "dropout";
  double probability = 0.5;
};
void describe(Fields& v, DropoutSpec& s);
[[nodiscard]] LayerPtr make_layer(const DropoutSpec& spec, const LayerSite& site);

}  // namespace stagecraft
