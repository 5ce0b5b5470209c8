#pragma once

// Samples as rows of arrays, in one safetensors file or in a folder of .npy files, which any tool writes: an array
// per field of the batch, such as "input_ids", "attention_mask" and "labels". A run reads the rows
// it needs.

#include "models/data/dataset.h"

#include <string>
#include <vector>

namespace stagecraft {

struct ArraysDataConfig {
  std::string path{};
  std::string validation_path{};        ///< of as many arrays of the same names; empty: no validation
  std::string inputs = "inputs";        ///< the array that the model's first layer reads
  std::string targets = "targets";      ///< the array that built-in losses read, where there is one
  std::string mask = "attention_mask";  ///< the array that is 0 where inputs are padding, for data.buckets
  std::int64_t classes = 0;             ///< of the targets, or the vocabulary; 0: found by reading them
  /// Images of bytes, as inputs: what is taken from x / 255 and what that is divided by, of each channel. Empty:
  /// inputs stay what they are.
  std::vector<double> mean{}, deviation{};
};
void describe(Fields& f, ArraysDataConfig& c);

/// Rows of all arrays are samples. Whole numbers of any width become 64 bits wide, numbers stay what they are, and
/// images [rows, channels, ...] of bytes become float32 where `mean` and `deviation` say how.
[[nodiscard]] std::unique_ptr<Dataset> open_arrays(const ArraysDataConfig& config, const InputPlace& data);

}  // namespace stagecraft
