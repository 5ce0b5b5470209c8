#pragma once

// What a captured layer's folder says of it.

#include "models/captured/model_folder.h"
#include "models/layers/layer_facts.h"

#include <memory>

namespace stagecraft::captured {

/// `layer` is one of `folder`, which the facts keep alive. `fused`: its gradients are multiplied into their sums.
[[nodiscard]] LayerFacts facts_of(const std::shared_ptr<const ModelFolder>& folder, const FolderLayer& layer,
                                  bool fused);

[[nodiscard]] bool has_gradient(const ValueType& type);
/// Whether the folder was captured without weights, and none were named for it.
[[nodiscard]] bool lacks_weights(const ModelFolder& folder);

}  // namespace stagecraft::captured
