#pragma once

#include "models/layers/site.h"

namespace stagecraft {

/// Over the last dimension. Keeps x and two numbers per row; I->W only the gradients themselves.
struct LayerNormSpec {
  static constexpr const char* kName = "layer_norm";
  double epsilon = 1e-5;
};
void describe(Fields& v, LayerNormSpec& s);
[[nodiscard]] LayerPtr make_layer(const LayerNormSpec& spec, const LayerSite& site);

}  // namespace stagecraft
