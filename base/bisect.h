#pragma once

namespace stagecraft {

/// The least of low .. high that works, where all above one that does do, and `high` is known to.
template <class Number, class Works>
[[nodiscard]] Number least_that(Number low, Number high, const Works& works) {
  while (low < high) {
    const Number middle = low + (high - low) / 2;
    if (works(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace stagecraft
