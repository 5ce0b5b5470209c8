#pragma once

// The integer hash behind shuffling, synthetic data and the random choices of searches.

#include <cstdint>

namespace stagecraft {

/// From one state of SplitMix64 to the next: 2^64 over the golden ratio.
inline constexpr std::uint64_t kMixStep = 0x9E3779B97F4A7C15ULL;

/// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
/// OOPSLA'14): a bijection of 64 bits in which every output bit depends on every input bit.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) {
  x += kMixStep;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

/// A hash of several numbers; their order matters.
template <class... Rest>
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t first, Rest... rest) {
  std::uint64_t state = mix(first);
  ((state = mix(state ^ static_cast<std::uint64_t>(rest))), ...);
  return state;
}

/// The top 53 bits as a number in [0, 1).
[[nodiscard]] constexpr double unit_interval(std::uint64_t x) {
  return static_cast<double>(x >> 11U) * 0x1.0p-53;
}

}  // namespace stagecraft
