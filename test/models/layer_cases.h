#pragma once

// A layer as it stands in no model: for tests.

#include "models/layers/layers.h"

#include <string>
#include <vector>

namespace stagecraft::test {

template <class Spec>
[[nodiscard]] LayerPtr layer_at(const Spec& spec, std::vector<std::int64_t> sample,
                                std::int64_t vocabulary = 0) {
  LayerSite site;
  site.name = "the layer";
  site.input = std::move(sample);
  site.input_dtype = vocabulary > 0 ? at::kLong : at::kDouble;
  site.vocabulary = vocabulary;
  site.place = {"run.json", "/model/layers/3"};
  return make_layer(spec, site);
}

}  // namespace stagecraft::test
