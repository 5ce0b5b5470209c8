#pragma once

// Random choices of a search: the same on every machine, and by which sequence is asked for.

#include "base/ids.h"

#include <cstddef>
#include <cstdint>

namespace stagecraft {

/// The k-th number of a sequence is a hash of k (SplitMix64: Steele et al., OOPSLA'14).
class Draws {
 public:
  explicit Draws(std::uint64_t sequence) : state_(sequence * 0x2545F4914F6CDD1DULL) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31U);
  }
  /// 0 to n - 1.
  std::size_t below(std::size_t n) { return to_size(next() % n); }
  /// `least` to `most`, both included.
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(most - least + 1));
  }
  double fraction() { return static_cast<double>(next() >> 11U) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace stagecraft
