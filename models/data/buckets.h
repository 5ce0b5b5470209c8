#pragma once

// Padded samples cut to a few lengths, so that short ones take less time: `data.buckets` of a config.

#include "models/data/dataset.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace stagecraft {

/// The samples of `data`, each cut behind the shortest of `lengths` that holds it; what has its first dimension
/// in common with the inputs is cut there (masks, labels). Throws InputError at `place` where nobody knows how
/// long samples are, and for lengths that do not ascend to that of a sample.
[[nodiscard]] std::unique_ptr<Dataset> in_buckets(std::unique_ptr<Dataset> data,
                                                  const std::vector<std::int64_t>& lengths,
                                                  const InputPlace& place);

/// Of a batch of those samples.
[[nodiscard]] std::int64_t length_of(const std::vector<LengthBucket>& buckets,
                                     const std::vector<std::int64_t>& samples);

/// Of the positions of whole samples, what an epoch computes: 1 where none is cut.
[[nodiscard]] double computed_positions(const Dataset& data);

}  // namespace stagecraft
