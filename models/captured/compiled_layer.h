#pragma once

// The library's own layers with compiled code: a model folder's graphs, made by stagecraft-capture --gpt
// --compile, compute in their place wherever they run code. A graph without code is no faster than the layer, so
// there the layer computes itself. Names, initial values and checkpoints stay those of the own layers.

#include "stagecraft/models/captured/model_folder.h"
#include "stagecraft/models/layers/site.h"

#include <optional>
#include <string>

namespace stagecraft {

inline constexpr const char* kCompiledLayersDoc =
    "folder with compiled code of these layers, made by stagecraft-capture --gpt --compile; it is native "
    "code, for folders that you trust as you trust programs (default: none)";

/// A folder whose layers have the names of a family's.
struct CompiledLayers {
  std::string folder;
  captured::FolderReader reader;
  std::string model;    ///< the name that the folder must have: what no weight's shape shows, as heads
  std::string command;  ///< that makes such a folder, for messages

  struct Use {
    std::string note;                 ///< how many layers run compiled, and when: one line
    std::optional<CompiledFor> runs;  ///< in which some do; none: in no run
  };
  /// Throws InputError, at `place`, where there is no such folder, or one of another model.
  [[nodiscard]] Use require_folder(const InputPlace& place) const;
  /// `own`, computed by the folder's layer of its name for sizes of micro-batch, devices and threads with which
  /// that one runs code. The choice follows from these and the folder alone, so it is the same on every rank.
  /// Throws InputError where the folder has no such layer, or one of other parameters, and all that a captured
  /// layer throws.
  [[nodiscard]] LayerPtr in_place_of(LayerPtr own, const LayerSite& site) const;
};

}  // namespace stagecraft
