#pragma once

// Local search over orders: small changes to one rank's order, kept while they help and, at first, also when
// they harm a little (threshold accepting: Dueck and Scheuer, J. Computational Physics 90, 1990; no
// exponentials, so the same choices everywhere). What would need more memory than there is, or would
// deadlock, is not kept.
//
// A change slides one computation past others that it need not follow, into an idle gap or by a random
// distance; moves a stretch of one kind of work by one place, which is what one more micro-batch in flight
// takes; or splits a backward in its two parts or puts them together. Half of the computations moved are on
// the critical path: the chain of computations, each waiting for the one before, that ends last.
//
// All randomness comes from a counter: the same problem, start and budget give the same result.

#include "schedules/synthesis/pricing.h"

#include <cstdint>
#include <functional>

namespace stagecraft::synthesis {

struct Found {
  Orders orders;
  Price price;
};

struct SearchLimits {
  std::int64_t work = 0;    ///< computations to price
  double bound = 0;         ///< nothing is better: stop there
  std::uint64_t draws = 0;  ///< which sequence of random numbers
  /// Asked now and then, with the best so far: false stops the search. May be empty.
  std::function<bool(double seconds)> go_on{};
};

/// The best found, `start` at worst, which is well formed, finishes and fits.
[[nodiscard]] Found local_search(const Problem& problem, Pricing& pricing, const Found& start,
                                 const SearchLimits& limits);

}  // namespace stagecraft::synthesis
