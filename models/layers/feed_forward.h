#pragma once

#include "models/layers/site.h"

namespace stagecraft {

/// x + dropout(linear(gelu(linear(layer norm(x))))).
struct FeedForwardSpec {
  static constexpr const char* kName = "feed_forward";
  std::int64_t hidden = 0;
  double dropout = 0;
};
void describe(Fields& v, FeedForwardSpec& s);
[[nodiscard]] LayerPtr make_layer(const FeedForwardSpec& spec, const LayerSite& site);

}  // namespace stagecraft
