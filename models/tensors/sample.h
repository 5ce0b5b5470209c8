#pragma once

// What a data set yields, as models and losses see it.

#include "models/tensors/batch_fields.h"

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// What a data set's targets are: one class per sample, one class per token, numbers, or nothing.
enum class Targets : std::uint8_t { classes, tokens, values, none };

/// The length of samples that are as long as SampleSpec says.
inline constexpr std::int64_t kWholeLength = 0;

/// A micro-batch's.
struct BatchSize {
  std::int64_t samples = 0;
  std::int64_t length = kWholeLength;  ///< of each sample, its first dimension
  friend auto operator<=>(const BatchSize&, const BatchSize&) = default;
};

/// Shape, without the batch dimension, and dtype of what the data set yields.
struct SampleSpec {
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  std::int64_t classes = 0;  ///< classes of the targets, vocabulary size, or numbers a regression predicts
  Targets targets = Targets::classes;
  std::vector<FieldSpec> fields{};  ///< that the data set has besides inputs and targets

  /// The field of that name, "inputs" and "targets" among them; null where there is none. "targets" among the
  /// fields says more of them than their kind does.
  [[nodiscard]] std::optional<FieldSpec> field(const std::string& name) const;
  /// `its_shape`, where it begins as the sample's does, cut to `length`.
  [[nodiscard]] std::vector<std::int64_t> cut(std::vector<std::int64_t> its_shape, std::int64_t length) const;
  /// Of a batch's samples; 0 where they are no tokens.
  [[nodiscard]] std::int64_t tokens(const BatchSize& batch) const;
};

}  // namespace stagecraft
