#include "models/families/mlp.h"

#include "models/layers/activation.h"
#include "models/layers/dropout.h"
#include "models/layers/flatten.h"
#include "models/layers/linear.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft {

void describe(Fields& f, MlpConfig& c) {
  f.optional("hidden", c.hidden, "widths of the hidden layers");
  f.optional("dropout", c.dropout, "after each hidden layer", json::from_up_to(0, 1));
}

LayerList expand(const MlpConfig& config, const ModelSite& site) {
  site.require_numbers("mlp");
  site.require_sizes(config.hidden, "hidden");
  LayerList list;
  list.name = config.hidden.empty() ? "mlp" : fmt::format("mlp {}", fmt::join(config.hidden, "-"));
  if (site.sample.shape.size() != 1) list.layers.push_back({FlattenSpec{}, "flatten"});
  for (std::size_t i = 0; i < config.hidden.size(); ++i) {
    const std::string hidden = fmt::format("hidden{}", i);
    list.layers.push_back({LinearSpec{config.hidden[i]}, hidden + ".linear"});
    list.layers.push_back({ReluSpec{}, hidden + ".relu"});
    if (config.dropout > 0) list.layers.push_back({DropoutSpec{config.dropout}, hidden + ".dropout"});
  }
  list.layers.push_back({LinearSpec{site.sample.classes}, "output"});
  return list;
}

}  // namespace stagecraft
