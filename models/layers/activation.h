#pragma once

#include "models/layers/site.h"

namespace stagecraft {

/// Keeps its output, which the next layer keeps as its input.
struct ReluSpec {
  static constexpr const char* kName = "relu";
};
void describe(Fields& v, ReluSpec& s);
[[nodiscard]] LayerPtr make_layer(const ReluSpec& spec, const LayerSite& site);

/// The exact one (error function). Keeps x.
struct GeluSpec {
  static constexpr const char* kName = "gelu";
};
void describe(Fields& v, GeluSpec& s);
[[nodiscard]] LayerPtr make_layer(const GeluSpec& spec, const LayerSite& site);

}  // namespace stagecraft
