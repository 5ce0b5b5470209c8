#pragma once

// Random choices of a search: the same on every machine, and by which sequence is asked for.

#include "base/ids.h"
#include "base/mix.h"

#include <cstddef>
#include <cstdint>

namespace stagecraft {

/// The k-th number of a sequence is a hash of k (SplitMix64, as in mix.h).
class Draws {
 public:
  explicit Draws(std::uint64_t sequence) : state_(sequence * 0x2545F4914F6CDD1DULL) {}

  std::uint64_t next() {
    const std::uint64_t drawn = mix(state_);
    state_ += kMixStep;
    return drawn;
  }
  /// 0 to n - 1.
  std::size_t below(std::size_t n) { return to_size(next() % n); }
  /// `least` to `most`, both included.
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(most - least + 1));
  }
  double fraction() { return unit_interval(next()); }

 private:
  std::uint64_t state_;
};

}  // namespace stagecraft
