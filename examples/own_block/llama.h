#pragma once

// A transformer block in the manner of Llama (Touvron et al., arXiv 2302.13971), as layers of one's own:
// RMSNorm, rotary positions, SwiGLU, no biases. A layer is the smallest unit that a pipeline can be cut
// between, so a block is two of them, as in the built-in gpt.

#include <cstdint>
#include <stagecraft/engine.h>

namespace llama {

/// {"type": "rms_norm"}: x / sqrt(mean(x^2) + epsilon) * weight, over the last dimension.
struct RmsNorm {
  double epsilon = 1e-5;
};
/// {"type": "token_embedding", "width": 64}: [tokens] -> [tokens, hidden_size]. No positions: attention rotates.
struct TokenEmbedding {
  std::int64_t hidden_size = 1;
};
/// {"type": "rotary_attention", "heads": 4}: x + project(attention(rotated(qkv(rms_norm(x))))), causal.
struct RotaryAttention {
  std::int64_t heads = 1;
  double base = 10000;  ///< of the rotation frequencies (Su et al., arXiv 2104.09864)
};
/// {"type": "swiglu", "hidden": 172}: x + down(silu(gate(n)) * up(n)), n = rms_norm(x) (arXiv 2002.05202).
struct Swiglu {
  std::int64_t hidden = 1;
};
/// {"family": "llama", "blocks": 4, ...}
struct Family {
  std::int64_t blocks = 4, hidden_size = 64, heads = 4, hidden = 172;
};

void describe(stagecraft::Fields& f, RmsNorm& s);
void describe(stagecraft::Fields& f, TokenEmbedding& s);
void describe(stagecraft::Fields& f, RotaryAttention& s);
void describe(stagecraft::Fields& f, Swiglu& s);
void describe(stagecraft::Fields& f, Family& s);

stagecraft::LayerPtr make(const RmsNorm& s, const stagecraft::LayerSite& site);
stagecraft::LayerPtr make(const TokenEmbedding& s, const stagecraft::LayerSite& site);
stagecraft::LayerPtr make(const RotaryAttention& s, const stagecraft::LayerSite& site);
stagecraft::LayerPtr make(const Swiglu& s, const stagecraft::LayerSite& site);
stagecraft::LayerList expand(const Family& s, const stagecraft::ModelSite& site);

/// Call once, at the start of main().
void register_all();

}  // namespace llama
