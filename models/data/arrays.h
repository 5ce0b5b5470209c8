#pragma once

// Samples as rows of arrays, in one safetensors file that any tool writes: an array per field of the batch,
// such as "input_ids", "attention_mask" and "labels". The file lies mapped: a run reads the rows it needs.

#include "stagecraft/models/data/dataset.h"

#include <string>

namespace stagecraft {

struct ArraysDataConfig {
  std::string path{};
  std::string validation_path{};    ///< of as many arrays of the same names; empty: no validation
  std::string inputs = "inputs";    ///< the array that the model's first layer reads
  std::string targets = "targets";  ///< the array that built-in losses read, where there is one
  std::int64_t classes = 0;         ///< of the targets, or the vocabulary; 0: found by reading them
};
void describe(Fields& f, ArraysDataConfig& c);

/// Rows of all arrays are samples. Whole numbers of any width become 64 bits wide, numbers stay what they are.
[[nodiscard]] std::unique_ptr<Dataset> open_arrays(const ArraysDataConfig& config, const InputPlace& data);

}  // namespace stagecraft
