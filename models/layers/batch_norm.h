#pragma once

#include "models/layers/site.h"

namespace stagecraft {

/// Over [channels, height, width] or [features], with the micro-batch's own statistics while training. Keeps
/// x and two numbers per channel; I->W only the gradients themselves. A training micro-batch with one number
/// per channel has no variance: InputError.
struct BatchNormSpec {
  static constexpr const char* kName = "batch_norm";
  double momentum = 0.1;
  double epsilon = 1e-5;
};
void describe(Fields& v, BatchNormSpec& s);
[[nodiscard]] LayerPtr make_layer(const BatchNormSpec& spec, const LayerSite& site);

}  // namespace stagecraft
