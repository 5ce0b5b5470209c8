#pragma once

// Made-up data sets that can be learned. Every element is a hash of (seed, split, sample, position): nothing
// is held, and the same sample is the same numbers on every machine.

#include "stagecraft/models/data/dataset.h"

namespace stagecraft {

///  classification  a centre a class (uniform in [-1, 1] an element) plus noise, uniform in [-1.5, 1.5]
///  regression      `classes` outputs, each a fixed linear combination of the inputs (uniform in [-1, 1])
///  tokens          shape [sequence]: nine tokens of ten follow from the one before by a fixed table, the
///                  tenth is any; the targets are the next tokens
[[nodiscard]] std::unique_ptr<Dataset> open_synthetic(const SyntheticDataConfig& config,
                                                      const InputPlace& place);

}  // namespace stagecraft
