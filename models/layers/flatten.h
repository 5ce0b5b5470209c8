#pragma once

#include "models/layers/site.h"

namespace stagecraft {

/// A view. Keeps nothing.
struct FlattenSpec {
  static constexpr const char* kName = "flatten";
};
void describe(Fields& v, FlattenSpec& s);
[[nodiscard]] LayerPtr make_layer(const FlattenSpec& spec, const LayerSite& site);

}  // namespace stagecraft
