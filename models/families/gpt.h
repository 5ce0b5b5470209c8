#pragma once

#include "models/families/registry.h"

#include <cstdint>

namespace stagecraft {

/// Pre-norm transformer decoder: learned positions, causal attention, GELU. Cut between half blocks
/// (attention | feed-forward).
struct GptConfig {
  static constexpr const char* kName = "gpt";
  std::int64_t blocks = 4;
  std::int64_t hidden_size = 128;
  std::int64_t heads = 4;
  std::int64_t feed_forward = 0;  ///< 0: 4 * hidden_size
  double dropout = 0;             ///< embeddings and residual branches
  double attention_dropout = 0;   ///< attention weights
};
void describe(Fields& f, GptConfig& c);
[[nodiscard]] LayerList expand(const GptConfig& config, const ModelSite& site);

}  // namespace stagecraft
