#pragma once

#include "stagecraft/models/captured/model_folder.h"
#include "stagecraft/models/layers/site.h"

#include <memory>
#include <string>

namespace stagecraft {

/// A layer of a model captured from PyTorch (docs/reference/model_folder.md). Keeps what its graph says, and
/// buffers that backward_input reads. Starts with the folder's weights.
struct CapturedLayerSpec {
  static constexpr const char* kName = "captured";
  std::string path;     ///< of the folder
  std::string layer;    ///< its name in the manifest
  std::string weights;  ///< where they come from; empty: the folder
  captured::FolderReader reader;
};
void describe(Fields& v, CapturedLayerSpec& s);
[[nodiscard]] LayerPtr make_layer(const CapturedLayerSpec& spec, const LayerSite& site);

}  // namespace stagecraft
