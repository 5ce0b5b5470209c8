#pragma once

// Small models of every family, with data for them.

#include "stagecraft/models/loss.h"
#include "stagecraft/models/model.h"
#include "stagecraft/profiler/chain.h"
#include "test/support/built_in.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <vector>

namespace stagecraft::test {

struct ProfiledModel {
  Model model;
  std::shared_ptr<const Loss> loss;

  [[nodiscard]] ChainInput data(std::int64_t size) const {
    std::vector<std::int64_t> shape{size};
    shape.insert(shape.end(), model.sample.shape.begin(), model.sample.shape.end());
    if (model.sample.dtype == at::kLong) {
      const at::Tensor tokens = at::randint(model.sample.classes, shape, at::kLong);
      return {tokens, tokens.clone()};
    }
    return {at::randn(shape), at::randint(model.sample.classes, {size}, at::kLong)};
  }
};

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
