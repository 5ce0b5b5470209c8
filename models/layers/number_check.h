#pragma once

// Numbers of the batch that a layer or a loss cannot use. Whole numbers choose a row of a table or a class: tokens of
// an embedding, labels of a loss. One beyond the table is the data's mistake, which kernels refuse at whatever step
// it comes, without a word on the data, or read beyond the table. One number that is not finite makes a step's whole
// gradient so. So layers and losses say what they need, and a run's data is compared with that
// (models/check/checked_data.h).

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace stagecraft {

struct NumberCheck {
  std::string field{};    ///< of the batch, by the model's name; empty: a layer's input, a loss's targets
  std::size_t place = 0;  ///< of that input in the bundle before the layer
  bool finite = false;    ///< allowed: numbers that are neither infinite nor NaN, of any size
  std::int64_t least = 0, end = 0;        ///< otherwise: least, least + 1, ..., end - 1
  std::optional<std::int64_t> ignored{};  ///< allowed besides
  std::string reader{};                   ///< "an embedding of 97 rows (tokens.weight)", "linear"
  bool direct = true;                     ///< they are numbers of the field as they stand there
  /// The numbers that are looked up for `batch`, some samples of the field: whole numbers on the CPU. Undefined
  /// for samples of another shape than the model takes. Any thread. Absent: all of them, as they are.
  std::function<at::Tensor(const at::Tensor& batch)> numbers{};
};

}  // namespace stagecraft
