#pragma once

// A layer as it stands in no model, and what it is fed with: for tests.

#include <ATen/ops/randn.h>

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::test {

inline const Context kTrain{Mode::train, {11, 4, 7, 2}};

[[nodiscard]] inline at::Tensor numbers(const std::vector<std::int64_t>& shape) {
  return at::randn(shape, at::kDouble);
}

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
