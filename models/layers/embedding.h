#pragma once

#include "models/layers/site.h"

namespace stagecraft {

/// [tokens] -> [tokens, hidden_size], always all the positions: a learned vector for each token plus one for each
/// position. Keeps the tokens and, I->W, dy. Has no input gradient.
struct EmbeddingSpec {
  static constexpr const char* kName = "embedding";
  std::int64_t hidden_size = 1;
  double dropout = 0;
};
void describe(Fields& v, EmbeddingSpec& s);
[[nodiscard]] LayerPtr make_layer(const EmbeddingSpec& spec, const LayerSite& site);

}  // namespace stagecraft
