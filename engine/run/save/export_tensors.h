#pragma once

// What an export writes: a checkpoint's tensors under the names that their model has in PyTorch.

#include "engine/records/metrics/manifest.h"
#include "models/captured/model_folder.h"
#include "models/tensors/safetensors_writer.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// Of a model folder: what the capture keeps of adapters.
inline constexpr const char* kAdaptersFolder = "adapters";

/// The name that a parameter's average has in its layer's file, where a run averages weights
/// (optimizer.ema_decay). It is exported in the parameter's place.
[[nodiscard]] std::string averaged_name(const std::string& parameter);

/// Of a captured model: `model.layers.0.mlp.up_proj.weight`, in the manifest's order; parameters, persistent
/// buffers, and what no layer trains as the folder has it: frozen weights too, which are held against the hashes that
/// the checkpoint has of them. Checkpoint files are held against their hashes, and
/// `meanwhile` is called again and again while they are.
/// Throws InputError naming the file where it is corrupt, or has not the model's tensors.
[[nodiscard]] std::vector<StreamedTensor> captured_tensors(const std::string& checkpoint,
                                                           const Manifest& manifest,
                                                           const captured::ModelFolder& model,
                                                           const std::function<void()>& meanwhile = nullptr);

/// Those of `tensors` that a model folder's adapters/ names, under PEFT's names. Throws InputError where it has no
/// adapters, or names a tensor that there is none of.
[[nodiscard]] std::vector<StreamedTensor> adapter_tensors(const captured::ModelFolder& model,
                                                          std::vector<StreamedTensor> tensors);

/// Of any other model: LAYER.PARAMETER and LAYER.BUFFER, as `layer3.weight`. Throws like captured_tensors.
[[nodiscard]] std::vector<StreamedTensor> layer_tensors(const std::string& checkpoint,
                                                        const Manifest& manifest,
                                                        const std::function<void()>& meanwhile = nullptr);

/// Every floating-point tensor in `dtype`; without one as they are. What a float16 cannot hold is refused when
/// it is made, with an InputError that names the tensor.
[[nodiscard]] std::vector<StreamedTensor> converted(std::vector<StreamedTensor> tensors,
                                                    std::optional<at::ScalarType> dtype);

}  // namespace stagecraft
