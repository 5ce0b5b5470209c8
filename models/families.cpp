#include "stagecraft/models/families.h"

#include "stagecraft/base/error.h"
#include "stagecraft/models/layers/functional.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <utility>

namespace stagecraft {
namespace {

/// Far above any width, and so small that sums and small multiples of sizes fit 64 bits.
constexpr std::int64_t kMostSize = std::int64_t{1} << 48U;

/// Widths are in lists, whose elements a config's description does not bound.
void require_positive(const std::vector<std::int64_t>& widths, const std::string& key,
                      const InputPlace& place) {
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] < 1 || widths[i] > kMostSize) {
      throw InputError({place.file, fmt::format("{}/{}/{}", place.pointer, key, i)},
                       fmt::format("expected a number from 1 to {}, found {}", kMostSize, widths[i]));
    }
  }
}

void require_numbers(const char* family, const SampleSpec& sample, const InputPlace& place) {
  if (sample.dtype == at::kLong) {
    throw InputError(place,
                     fmt::format("{} takes samples of numbers, this data has tokens; use gpt", family));
  }
  if (sample.classes < 1) throw InputError(place, "the data does not say how many outputs the model needs");
}

void append_linear(LayerList& list, std::int64_t features, std::string name) {
  list.layers.push_back({LinearSpec{features, true}, std::move(name)});
}

}  // namespace

void require_few_layers(std::int64_t layers, const InputPlace& place) {
  if (layers <= kMostLayers) return;
  throw InputError(place, fmt::format("{} layers; a model has at most {}", layers, kMostLayers));
}

LayerList expand(const MlpConfig& config, const SampleSpec& sample, const InputPlace& place) {
  require_numbers("mlp", sample, place);
  require_positive(config.hidden, "hidden", place);
  LayerList list;
  list.name = config.hidden.empty() ? "mlp" : fmt::format("mlp {}", fmt::join(config.hidden, "-"));
  if (sample.shape.size() != 1) list.layers.push_back({FlattenSpec{}, "flatten"});
  for (std::size_t i = 0; i < config.hidden.size(); ++i) {
    const std::string hidden = fmt::format("hidden{}", i);
    append_linear(list, config.hidden[i], hidden + ".linear");
    list.layers.push_back({ReluSpec{}, hidden + ".relu"});
    if (config.dropout > 0) list.layers.push_back({DropoutSpec{config.dropout}, hidden + ".dropout"});
  }
  append_linear(list, sample.classes, "output");
  return list;
}

LayerList expand(const ConvnetConfig& config, const SampleSpec& sample, const InputPlace& place) {
  require_numbers("convnet", sample, place);
  if (sample.shape.size() != 3) {
    throw InputError(place, fmt::format("convnet takes samples [channels, height, width], this data has {}",
                                        functional::shape_text(sample.shape)));
  }
  require_positive(config.classifier, "classifier", place);
  LayerList list;
  std::size_t convolutions = 0;
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    require_positive(config.groups[g], fmt::format("groups/{}", g), place);
    const std::string group = fmt::format("group{}", g);
    for (std::size_t i = 0; i < config.groups[g].size(); ++i) {
      Conv2dSpec convolution;
      convolution.channels = config.groups[g][i];
      convolution.bias = false;  // batch norm takes the mean out again
      list.layers.push_back({convolution, fmt::format("{}.conv{}", group, i)});
      list.layers.push_back({BatchNormSpec{}, fmt::format("{}.norm{}", group, i)});
      list.layers.push_back({ReluSpec{}, fmt::format("{}.relu{}", group, i)});
    }
    list.layers.push_back({MaxPoolSpec{}, group + ".pool"});
    convolutions += config.groups[g].size();
  }
  list.layers.push_back({FlattenSpec{}, "flatten"});
  const auto drop = [&](const std::string& before) {
    if (config.dropout > 0) list.layers.push_back({DropoutSpec{config.dropout}, before + ".dropout"});
  };
  for (std::size_t i = 0; i < config.classifier.size(); ++i) {
    const std::string name = fmt::format("classifier{}", i);
    drop(name);
    append_linear(list, config.classifier[i], name + ".linear");
    list.layers.push_back({ReluSpec{}, name + ".relu"});
  }
  drop("output");
  append_linear(list, sample.classes, "output");
  list.name = fmt::format("convnet {}+{}", convolutions, config.classifier.size() + 1);
  return list;
}

LayerList expand(const GptConfig& config, const SampleSpec& sample, const InputPlace& place) {
  if (sample.dtype != at::kLong || sample.shape.size() != 1 || sample.classes < 1) {
    throw InputError(place, fmt::format("gpt takes samples of tokens, [sequence], this data has {} {}",
                                        sample.dtype == at::kLong ? "tokens" : "numbers",
                                        functional::shape_text(sample.shape)));
  }
  // Before the list is made: two numbers ask for as much as they like.
  if (config.blocks > kMostLayers / 2) {
    throw InputError(
        {place.file, place.pointer + "/blocks"},
        fmt::format("{} blocks are more than the {} layers a model may have; a block is two layers",
                    config.blocks, kMostLayers));
  }
  for (const auto& [key, size] :
       {std::pair{"width", config.width}, std::pair{"feed_forward", config.feed_forward}}) {
    if (size <= kMostSize) continue;
    throw InputError({place.file, fmt::format("{}/{}", place.pointer, key)},
                     fmt::format("expected at most {}, found {}", kMostSize, size));
  }
  LayerList list;
  list.name = fmt::format("gpt {}x{}", config.blocks, config.width);
  list.linear_deviation = 0.02;
  list.layers.push_back({EmbeddingSpec{config.width, config.dropout}, "embedding"});
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

LayerList expand(const SequentialConfig& config, const SampleSpec&, const InputPlace& place) {
  LayerList list{fmt::format("sequential of {}", config.layers.size()), config.layers, 0};
  std::set<std::string> names;
  for (std::size_t i = 0; i < list.layers.size(); ++i) {
    LayerSpec& spec = list.layers[i];
    if (spec.name.empty()) {
      spec.name =
          std::visit([](const auto& s) { return std::string(s.kName); }, spec.layer) + std::to_string(i);
    }
    if (!names.insert(spec.name).second) {
      throw InputError({place.file, fmt::format("{}/layers/{}/name", place.pointer, i)},
                       fmt::format("\"{}\" is the name of another layer already", spec.name));
    }
  }
  return list;
}

}  // namespace stagecraft
