#pragma once

#include "models/layers/site.h"

namespace stagecraft {

/// x + dropout(project(causal attention(layer norm(x)))), softmax(q k^T / sqrt(hidden_size / heads)). Without
/// attention dropout through ATen's flash attention, which keeps no weights; with it they are kept, [heads,
/// tokens, tokens].
struct AttentionSpec {
  static constexpr const char* kName = "attention";
  std::int64_t heads = 1;
  double dropout = 0;
  double attention_dropout = 0;
};
void describe(Fields& v, AttentionSpec& s);
[[nodiscard]] LayerPtr make_layer(const AttentionSpec& spec, const LayerSite& site);

}  // namespace stagecraft
