#pragma once

// Fields of the batch: what layers or a loss read besides the model's input and the targets, such as padding
// masks and labels. They never travel: each stage reads those it needs of the data set itself.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace stagecraft {

/// Of one micro-batch, by the model's names for them.
using FieldTensors = std::map<std::string, at::Tensor>;

/// A field that a data set has: its name, and the shape of one sample.
struct FieldSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kLong;
  bool needed = false;  ///< the samples mean something else to a model that does not read it
};

/// A field that a model reads, and where it comes from.
struct BatchField {
  std::string name;  ///< the model's: "attention_mask"
  std::string from;  ///< the data set's: "inputs", "targets" or another; empty: `fill` everywhere
  double fill = 0;
  std::vector<std::int64_t> shape;  ///< of one sample
  at::ScalarType dtype = at::kLong;
};

}  // namespace stagecraft
