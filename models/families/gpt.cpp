#include "models/families/gpt.h"

#include "models/layers/attention.h"
#include "models/layers/embedding.h"
#include "models/layers/feed_forward.h"
#include "models/layers/layer_norm.h"
#include "models/layers/linear.h"
#include "models/tensors/shape_text.h"

#include <fmt/format.h>

namespace stagecraft {
void describe(Fields& f, GptConfig& c) {
  f.optional("blocks", c.blocks, "transformer blocks", json::at_least(1));
  f.optional("width", c.hidden_size, "of the residual stream", json::at_least(1));
  f.optional("heads", c.heads, "attention heads; divides width", json::at_least(1));
  f.optional("feed_forward", c.feed_forward, "hidden width of the feed-forward part; 0: 4 * width",
             json::at_least(0));
  f.optional("dropout", c.dropout, "of embeddings and residual branches", json::from_up_to(0, 1));
  f.optional("attention_dropout", c.attention_dropout, "of attention weights", json::from_up_to(0, 1));
  f.require(c.heads > 0 && c.hidden_size % c.heads == 0, "heads",
            fmt::format("width {} is not a multiple of heads {}", c.hidden_size, c.heads));
}

LayerList expand(const GptConfig& config, const ModelSite& site) {
  const SampleSpec& sample = site.sample;
  if (sample.dtype != at::kLong || sample.shape.size() != 1 || sample.classes < 1) {
    throw InputError(site.place,
                     fmt::format("gpt takes samples of tokens, [sequence], this data has {} {}",
                                 sample.dtype == at::kLong ? "tokens" : "numbers", shape_text(sample.shape)));
  }
  // Before the list is made: two numbers ask for as much as they like.
  if (config.blocks > kMostLayers / 2) {
    throw InputError(
        {site.place.file, site.place.pointer + "/blocks"},
        fmt::format("{} blocks are more than the {} layers a model may have; a block is two layers",
                    config.blocks, kMostLayers));
  }
  site.require_size(config.hidden_size, "width");
  if (config.feed_forward > 0) site.require_size(config.feed_forward, "feed_forward");
  LayerList list;
  list.name = fmt::format("gpt {}x{}", config.blocks, config.hidden_size);
  list.linear_deviation = 0.02;
  list.layers.push_back({EmbeddingSpec{config.hidden_size, config.dropout}, "embedding"});
  for (std::int64_t block = 0; block < config.blocks; ++block) {
    list.layers.push_back({AttentionSpec{config.heads, config.dropout, config.attention_dropout},
                           fmt::format("block{}.attention", block)});
    list.layers.push_back(
        {FeedForwardSpec{config.feed_forward, config.dropout}, fmt::format("block{}.feed_forward", block)});
  }
  list.layers.push_back({LayerNormSpec{}, "norm"});
  list.layers.push_back({LinearSpec{sample.classes, false}, "head"});
  return list;
}

}  // namespace stagecraft
