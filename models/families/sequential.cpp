#include "models/families/sequential.h"

#include <fmt/format.h>

#include <set>

namespace stagecraft {

void describe(Fields& f, SequentialConfig& c) {
  f.required("layers", c.layers, "in order", json::non_empty());
}

LayerList expand(const SequentialConfig& config, const ModelSite& site) {
  LayerList list{fmt::format("sequential of {}", config.layers.size()), config.layers, 0, true};
  std::set<std::string> names;
  for (std::size_t i = 0; i < list.layers.size(); ++i) {
    LayerSpec& spec = list.layers[i];
    if (spec.name.empty()) spec.name = spec.layer.name() + std::to_string(i);
    if (!names.insert(spec.name).second) {
      throw InputError({site.place.file, fmt::format("{}/layers/{}/name", site.place.pointer, i)},
                       fmt::format("\"{}\" is the name of another layer already", spec.name));
    }
  }
  return list;
}

}  // namespace stagecraft
