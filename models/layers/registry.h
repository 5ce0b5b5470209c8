#pragma once

// The kinds of layers a config may list, built-in and added ones:
//
//   layers().add<RmsNormSettings>("rms_norm", make_rms_norm);

#include "base/registry.h"
#include "models/layers/site.h"

#include <string>

namespace stagecraft {

struct LayerKind {
  using Site = LayerSite;
  using Product = LayerPtr;
  static constexpr const char* kWhat = "layer";
  static Registry<LayerKind>& registry();
};
[[nodiscard]] inline Registry<LayerKind>& layers() { return LayerKind::registry(); }

/// One layer of a list.
struct LayerSpec {
  Named<LayerKind> layer;
  std::string name;  ///< empty: type and index
};
void describe(Fields& f, LayerSpec& s);

/// More layers than any model has: a slip in the config, refused before anything is made of it.
inline constexpr std::int64_t kMostLayers = 50'000;

}  // namespace stagecraft
