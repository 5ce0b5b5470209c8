#include "base/error.h"
#include "base/mix.h"
#include "models/data/dataset.h"

#include <fmt/format.h>

namespace stagecraft {

namespace {

// Four rounds make a Feistel network with good round functions a strong pseudo-random permutation (Luby and
// Rackoff 1988); two more because halves of a few bits are far from the asymptotics of that theorem.
constexpr unsigned kRounds = 6;

std::uint64_t feistel(std::uint64_t value, std::uint64_t key, unsigned half_bits) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits;
  std::uint64_t right = value & mask;
  for (unsigned round = 0; round < kRounds; ++round) {
    const std::uint64_t next = left ^ (mix(key, round, right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

}  // namespace

Shuffle::Shuffle(std::int64_t size, std::uint64_t seed, std::int64_t epoch, bool shuffle)
    : size_(size), key_(mix(seed, epoch)), shuffle_(shuffle) {
  STAGECRAFT_CHECK(size >= 0, fmt::format("a data set of {} samples", size));
  // Two halves of 32 bits are more than any size, and 64 are more than a shift can take.
  while (half_bits_ < 32 && (std::uint64_t{1} << (2 * half_bits_)) < static_cast<std::uint64_t>(size)) {
    ++half_bits_;
  }
}

std::int64_t Shuffle::operator()(std::int64_t position) const {
  STAGECRAFT_CHECK(position >= 0 && position < size_,
                   fmt::format("position {} in an epoch of {}", position, size_));
  if (!shuffle_) return position;
  // The network permutes [0, 4^half_bits), at most four times the size: walking its cycle until it is back
  // below `size` is a permutation of [0, size) and takes fewer than four steps on average.
  auto value = static_cast<std::uint64_t>(position);
  do {
    value = feistel(value, key_, half_bits_);
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

}  // namespace stagecraft
