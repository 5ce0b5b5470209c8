#pragma once

// Samples for the captured models in test/data/captured that read a mask: 4 positions of 8 numbers each, of which
// some are padding, and a label per position, -100 where it does not count. Functions of the sample's index.

#include "models/data/dataset.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <string>
#include <vector>

namespace stagecraft::test {

class PaddedData final : public Dataset {
 public:
  PaddedData(std::int64_t samples, std::int64_t validation_samples)
      : samples_(samples), validation_samples_(validation_samples) {}

  std::int64_t size(Split split) const override {
    return split == Split::train ? samples_ : validation_samples_;
  }
  SampleSpec sample() const override {
    return {{4, 8}, at::kFloat, 5, Targets::none, {{"mask", {4}, at::kLong}, {"labels", {4}, at::kLong}}};
  }
  at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    const auto count = static_cast<std::int64_t>(indices.size());
    at::Tensor tensor = at::empty({count, 4, 8}, at::kFloat);
    auto* numbers = tensor.mutable_data_ptr<float>();
    for (const std::int64_t index : indices) {
      for (int i = 0; i < 32; ++i) {
        *numbers++ = std::sin(0.37F * static_cast<float>(key(split, index) * 32 % 9973 + i));
      }
    }
    return tensor;
  }
  at::Tensor targets(Split, const std::vector<std::int64_t>&) const override { return {}; }
  /// Of every seventh sample nothing counts: micro-batches weigh differently, and some nothing.
  at::Tensor field(Split split, const std::string& name,
                   const std::vector<std::int64_t>& indices) const override {
    const auto count = static_cast<std::int64_t>(indices.size());
    at::Tensor tensor = at::empty({count, 4}, at::kLong);
    auto* numbers = tensor.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      const std::int64_t sample = key(split, index);
      for (int i = 0; i < 4; ++i) {
        const bool there = i < 4 - sample % 4;
        const std::int64_t label = there && sample % 7 != 6 ? (sample * 4 + i) % 5 : -100;
        *numbers++ = name == "mask" ? std::int64_t{there} : label;
      }
    }
    return tensor;
  }
  std::vector<std::int64_t> lengths(Split split) const override {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < size(split); ++i) all.push_back(4 - key(split, i) % 4);
    return all;
  }
  std::string fingerprint() const override { return "padded"; }
  std::string summary() const override { return "padded"; }

 private:
  static std::int64_t key(Split split, std::int64_t index) {
    return index + (split == Split::validation ? 1000 : 0);
  }

  std::int64_t samples_, validation_samples_;
};

}  // namespace stagecraft::test
