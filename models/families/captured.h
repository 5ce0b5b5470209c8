#pragma once

#include "models/captured/captured_layer.h"
#include "models/captured/model_folder.h"
#include "models/families/registry.h"

#include <optional>
#include <string>

namespace stagecraft {

/// A model captured from PyTorch, with its weights (docs/reference/model_folder.md). Cut between the layers of
/// its manifest.
struct CapturedConfig {
  /// Where a field of the batch comes from, in place of what the folder says.
  struct FieldSource {
    std::string name;  ///< the model's
    std::string from;  ///< the data set's; empty: every entry is `fill`
    double fill = 0;
  };
  static constexpr const char* kName = "captured";
  std::string path;
  std::vector<FieldSource> fields;
  std::string weights;  ///< safetensors file, or folder with one; empty: the model folder's
  Accumulate accumulate = Accumulate::exact;
  std::optional<UseCompiled> compiled{};  ///< absent: off
  captured::FolderReader reader;
};
void describe(Fields& f, CapturedConfig::FieldSource& s);
void describe(Fields& f, CapturedConfig& c);
[[nodiscard]] LayerList expand(const CapturedConfig& config, const ModelSite& site);

}  // namespace stagecraft
