#pragma once

// Made-up data sets that can be learned. Every element is a hash of (seed, split, sample, position): nothing
// is held, and the same sample is the same numbers on every machine.

#include "models/data/dataset.h"

namespace stagecraft {

/// Made up, learnable and the same everywhere: for tests, benchmarks and trying things out.
struct SyntheticDataConfig {
  std::string task = "classification";
  std::int64_t samples = 1024;
  std::int64_t validation_samples = 256;
  std::vector<std::int64_t> shape{32};
  std::int64_t classes = 10;
  std::uint64_t seed = 1;
};
void describe(Fields& f, SyntheticDataConfig& c);

///  classification  one centre per class (uniform in [-1, 1] per element) plus noise, uniform in [-1.5, 1.5]
///  regression      `classes` outputs, each a fixed linear combination of the inputs (uniform in [-1, 1])
///  tokens          shape [sequence]: nine tokens of ten follow from the one before by a fixed table, the
///                  tenth is any; the targets are the next tokens
[[nodiscard]] std::unique_ptr<Dataset> open_synthetic(const SyntheticDataConfig& config,
                                                      const InputPlace& place);

}  // namespace stagecraft
