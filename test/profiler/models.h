#pragma once

// Small models of every family, with data for them.

#include "models/losses/loss.h"
#include "models/model.h"
#include "profiler/chain.h"
#include "test/support/built_in.h"
#include "test/support/padded_data.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <numeric>
#include <utility>
#include <vector>

namespace stagecraft::test {

struct ProfiledModel {
  Model model;
  std::shared_ptr<const Loss> loss;
  std::shared_ptr<const Dataset> dataset{};  ///< null: random numbers

  [[nodiscard]] ChainInput data(std::int64_t size) const {
    if (dataset != nullptr) {
      std::vector<std::int64_t> samples(static_cast<std::size_t>(size));
      std::iota(samples.begin(), samples.end(), 0);
      const auto fields = model.fields_of(0, static_cast<int>(model.layers.size()), loss.get());
      return {
          dataset->inputs(Split::train, samples), {}, read_fields(*dataset, Split::train, fields, samples)};
    }
    std::vector<std::int64_t> shape{size};
    shape.insert(shape.end(), model.sample.shape.begin(), model.sample.shape.end());
    if (model.sample.dtype == at::kLong) {
      const at::Tensor tokens = at::randint(model.sample.classes, shape, at::kLong);
      return {tokens, tokens.clone()};
    }
    return {at::randn(shape), at::randint(model.sample.classes, {size}, at::kLong)};
  }
};

/// Several tensors go on between its layers, which read a field of the batch.
inline ProfiledModel captured_bundles() {
  const auto data = std::make_shared<const PaddedData>(64, 8);
  ModelConfig config;
  const Json json{{"family", "captured"}, {"path", STAGECRAFT_CAPTURED_MODELS "/mixed"}};
  json::read_value(json, {"run.json", "/model"}, config, json::Range{});
  Model model = build_model(config, data->sample(), at::kFloat, {"run.json", "/model"});
  const std::shared_ptr<const Loss> loss = model.loss;
  return {std::move(model), loss, data};
}

inline std::vector<ProfiledModel> subjects(double dropout) {
  const SampleSpec image{{2, 8, 8}, at::kFloat, 5};
  const SampleSpec text{{6}, at::kLong, 20};
  const auto classes = LossConfig{CrossEntropy{}}.make();
  std::vector<ProfiledModel> all;
  all.push_back(
      {build_model({MlpConfig{.hidden = {12, 10, 8}, .dropout = dropout}}, image, at::kFloat, {}), classes});
  all.push_back({build_model({ConvnetConfig{.groups = {{3, 4}, {4}}, .classifier = {6}, .dropout = dropout}},
                             image, at::kFloat, {}),
                 classes});
  all.push_back(
      {build_model(
           {GptConfig{
               .blocks = 2, .hidden_size = 8, .heads = 2, .dropout = dropout, .attention_dropout = dropout}},
           text, at::kFloat, {}),
       LossConfig{TokenCrossEntropy{}}.make()});
  return all;
}

}  // namespace stagecraft::test
