#pragma once

// The random words of models/random.h on any device, by ATen's integer operators: the same bits as the
// host's.

#include "stagecraft/models/random.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace stagecraft {

/// Words 0 to 3 of the stream's blocks 0 to `blocks` - 1: kLong, [4, blocks], each from 0 up to 2^32.
[[nodiscard]] at::Tensor philox_words(const RandomStream& stream, std::int64_t blocks, at::Device device);

}  // namespace stagecraft
