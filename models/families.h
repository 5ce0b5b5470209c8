#pragma once

// Model families as lists of typed layers: what `{"family": "gpt", ...}` stands for when written out.

#include "stagecraft/base/error.h"
#include "stagecraft/models/model.h"
#include "stagecraft/models/model_config.h"

#include <string>
#include <vector>

namespace stagecraft {

struct LayerList {
  std::string name;               ///< of the model: "gpt 4x128"
  std::vector<LayerSpec> layers;  ///< every one with its name
  double linear_deviation = 0;    ///< as in LayerSite
};

/// Throws InputError at `place` for more than kMostLayers.
void require_few_layers(std::int64_t layers, const InputPlace& place);

/// Throws InputError where the family cannot take such samples, or makes more than kMostLayers of few
/// numbers.
[[nodiscard]] LayerList expand(const MlpConfig& config, const SampleSpec& sample, const InputPlace& place);
[[nodiscard]] LayerList expand(const ConvnetConfig& config, const SampleSpec& sample,
                               const InputPlace& place);
[[nodiscard]] LayerList expand(const GptConfig& config, const SampleSpec& sample, const InputPlace& place);
[[nodiscard]] LayerList expand(const SequentialConfig& config, const SampleSpec& sample,
                               const InputPlace& place);

}  // namespace stagecraft
