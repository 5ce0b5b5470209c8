#include "llama.h"

#include <stagecraft/models/layers/linear.h>

namespace llama {

void describe(stagecraft::Fields& f, Family& s) {
  f.optional("blocks", s.blocks, "transformer blocks", stagecraft::json::between(1, 10'000));
  f.optional("width", s.hidden_size, "of the residual stream", stagecraft::json::between(1, 1e6));
  f.optional("heads", s.heads, "attention heads", stagecraft::json::at_least(1));
  f.optional("hidden", s.hidden, "hidden width of the feed-forward part", stagecraft::json::between(1, 1e7));
  f.require(s.heads >= 1 && s.hidden_size % (2 * s.heads) == 0, "heads",
            "width " + std::to_string(s.hidden_size) + " is not a multiple of 2 * heads " +
                std::to_string(2 * s.heads));
}

stagecraft::LayerList expand(const Family& s, const stagecraft::ModelSite& site) {
  if (site.sample.dtype != at::kLong) {
    throw stagecraft::InputError(site.place, "llama takes samples of tokens, this data has numbers");
  }
  stagecraft::LayerList list{.name =
                                 "llama " + std::to_string(s.blocks) + "x" + std::to_string(s.hidden_size)};
  list.layers.push_back({TokenEmbedding{s.hidden_size}, "embedding"});
  for (std::int64_t i = 0; i < s.blocks; ++i) {
    const std::string block = "block" + std::to_string(i);
    list.layers.push_back({RotaryAttention{s.heads}, block + ".attention"});
    list.layers.push_back({Swiglu{s.hidden}, block + ".swiglu"});
  }
  list.layers.push_back({RmsNorm{}, "norm"});
  list.layers.push_back({stagecraft::LinearSpec{site.sample.classes, false}, "head"});
  return list;
}

void register_all() {
  const auto layer = [](const auto& settings, const stagecraft::LayerSite& site) {
    return make(settings, site);
  };
  stagecraft::layers().add<RmsNorm>("rms_norm", layer, {.doc = "x / rms(x) * weight"});
  stagecraft::layers().add<TokenEmbedding>("token_embedding", layer, {.doc = "a learned vector per token"});
  stagecraft::layers().add<RotaryAttention>(
      "rotary_attention", layer, {.doc = "norm, causal attention with rotary positions, residual"});
  stagecraft::layers().add<Swiglu>("swiglu", layer, {.doc = "norm, gated feed-forward part, residual"});
  stagecraft::model_families().add<Family>("llama", expand, {.doc = "Llama-style decoder"});
}

}  // namespace llama
