#pragma once

// Random numbers by name. Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1,
// 2, 3", SC'11) turns (key, counter) into numbers with no state in between: element i of a stream is the same
// whoever computes it, in whatever order, on however many threads.

#include "models/tensors/random_key.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace stagecraft {

using PhiloxBlock = std::array<std::uint32_t, 4>;

inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9, kPhiloxWeyl1 = 0xBB67AE85;

/// One round; the key words advance by the Weyl constants between rounds.
[[nodiscard]] inline PhiloxBlock philox_round(const PhiloxBlock& c, std::uint32_t key0, std::uint32_t key1) {
  const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c[0];
  const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * c[2];
  return {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ key0, static_cast<std::uint32_t>(p1),
          static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ key1, static_cast<std::uint32_t>(p0)};
}

/// The function of the paper: ten rounds.
[[nodiscard]] PhiloxBlock philox4x32(PhiloxBlock counter, std::array<std::uint32_t, 2> key);

/// One of the streams a RandomKey names. The seed is Philox's key; step, micro-batch, layer and stream fill
/// 96 bits of the counter without overlap, the last 32 bits count blocks of the stream.
struct RandomStream {
  RandomKey key;  ///< layer below 2^20; step and micro_batch below 2^32 (checked)
  /// Below 2^12: dropouts of a layer from 0 up, initial values from kInitialStream up.
  std::uint32_t stream = 0;

  [[nodiscard]] PhiloxBlock counter() const;  ///< of the first block
};
inline constexpr std::uint32_t kInitialStream = 2048;

/// Draws the elements of `tensor` (CPU, floating) in memory order.
void fill_uniform(at::Tensor& tensor, const RandomStream& stream, double half_width);
void fill_normal(at::Tensor& tensor, const RandomStream& stream, double deviation);

}  // namespace stagecraft
