#pragma once

// check_layer on each layer of a model, and check_loss: what `check-layers` runs.

#include "models/check/layer_check.h"
#include "models/losses/loss.h"
#include "models/model.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stagecraft {

/// One micro-batch of the data, on the CPU.
struct ModelInput {
  at::Tensor inputs, targets;  ///< the targets may be undefined
  FieldTensors fields;
};

struct LayerReport {
  std::string layer, type;         ///< the loss has no type
  std::vector<std::string> alike;  ///< other layers of the same kind, settings and sizes: not tried
  LayerChecked checked;
};

/// By layer, the loss last. Of layers that are alike the first is tried. What goes into a layer is of the types and sizes
/// that the model's forward makes of `first` and `second` at its initial weights. `progress` hears how many layers are done.
/// A layer that throws is reported, and those behind it are tried on numbers drawn.
[[nodiscard]] std::vector<LayerReport> check_layers(
    const Model& model, const Loss& loss, std::uint64_t seed, const ModelInput& first,
    const ModelInput& second, const std::function<void(std::size_t)>& progress = nullptr);

}  // namespace stagecraft
