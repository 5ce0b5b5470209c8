#pragma once

#include "stagecraft/models/captured/model_folder.h"
#include "stagecraft/models/families/registry.h"

namespace stagecraft {

/// A model captured from PyTorch, with its weights (docs/reference/model_folder.md). Cut between the layers of
/// its manifest.
struct CapturedConfig {
  static constexpr const char* kName = "captured";
  std::string path;
  std::string weights;  ///< safetensors file, or folder with one; empty: the model folder's
  captured::FolderReader reader;
};
void describe(Fields& f, CapturedConfig& c);
[[nodiscard]] LayerList expand(const CapturedConfig& config, const ModelSite& site);

}  // namespace stagecraft
