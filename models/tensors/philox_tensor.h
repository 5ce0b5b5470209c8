#pragma once

// The random words of models/tensors/random.h on any device, by ATen's integer operators: the same bits as the
// host's.

#include "models/tensors/random.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace stagecraft {

/// Words 0 to 3 of the stream's blocks 0 to `blocks` - 1: kLong, [4, blocks], each from 0 up to 2^32.
[[nodiscard]] at::Tensor philox_words(const RandomStream& stream, std::int64_t blocks, at::Device device);

/// Numbers from [0, 1) of a floating type, on `device`: as many random bits in each as the type's mantissa holds,
/// so that none rounds to 1. Elements 2i and 2i + 1 are of block i.
[[nodiscard]] at::Tensor uniform_numbers(at::IntArrayRef shape, at::ScalarType dtype,
                                         const RandomStream& stream, at::Device device);

/// Of the normal distribution with mean 0 and deviation 1, by Box and Muller in double precision.
[[nodiscard]] at::Tensor normal_numbers(at::IntArrayRef shape, at::ScalarType dtype,
                                        const RandomStream& stream, at::Device device);

/// Of the exponential distribution with rate 1. None is 0: who draws by Gumbel's trick takes their logarithm.
[[nodiscard]] at::Tensor exponential_numbers(at::IntArrayRef shape, at::ScalarType dtype,
                                             const RandomStream& stream, at::Device device);

/// Ones with `probability`, and zeros.
[[nodiscard]] at::Tensor bernoulli_numbers(at::IntArrayRef shape, at::ScalarType dtype, double probability,
                                           const RandomStream& stream, at::Device device);

}  // namespace stagecraft
