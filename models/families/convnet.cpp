#include "models/families/convnet.h"

#include "models/layers/activation.h"
#include "models/layers/batch_norm.h"
#include "models/layers/conv2d.h"
#include "models/layers/dropout.h"
#include "models/layers/flatten.h"
#include "models/layers/linear.h"
#include "models/layers/max_pool.h"
#include "models/tensors/shape_text.h"

#include <fmt/format.h>

namespace stagecraft {

void describe(Fields& f, ConvnetConfig& c) {
  f.optional("groups", c.groups, "channels of the convolutions of each group; a max pooling ends a group",
             json::non_empty());
  f.optional("classifier", c.classifier, "widths of the hidden linear layers");
  f.optional("dropout", c.dropout, "before each classifier layer", json::from_up_to(0, 1));
}

LayerList expand(const ConvnetConfig& config, const ModelSite& site) {
  site.require_numbers("convnet");
  if (site.sample.shape.size() != 3) {
    throw InputError(site.place,
                     fmt::format("convnet takes samples [channels, height, width], this data has {}",
                                 shape_text(site.sample.shape)));
  }
  site.require_sizes(config.classifier, "classifier");
  LayerList list;
  std::size_t convolutions = 0;
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    site.require_sizes(config.groups[g], fmt::format("groups/{}", g));
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
    list.layers.push_back({LinearSpec{config.classifier[i]}, name + ".linear"});
    list.layers.push_back({ReluSpec{}, name + ".relu"});
  }
  drop("output");
  list.layers.push_back({LinearSpec{site.sample.classes}, "output"});
  list.name = fmt::format("convnet {}+{}", convolutions, config.classifier.size() + 1);
  return list;
}

}  // namespace stagecraft
