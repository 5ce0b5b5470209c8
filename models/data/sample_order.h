#pragma once

// In which order an epoch reads the samples of a split, and how long its micro-batches are. All of it follows
// from numbers, so every rank knows it, whether it reads data or not.

#include "models/data/dataset.h"
#include "schedules/program/segments.h"

#include <cstdint>
#include <vector>

namespace stagecraft {

/// Without buckets a new permutation of all samples every epoch. With buckets (Dataset::buckets) one of the
/// samples of each bucket; these stand bucket behind bucket, are cut into mini-batches, and the mini-batches
/// are put into an order of their own, but for the epoch's last one, which may be short. So a mini-batch has
/// samples of one bucket, or, where two buckets meet, of both.
class SampleOrder {
 public:
  struct Options {
    std::uint64_t seed = 0;
    bool shuffle = true;     ///< false: samples by their numbers
    std::int64_t batch = 1;  ///< samples of a mini-batch
  };
  SampleOrder(const Dataset& data, Split split, const Options& options);

  /// The samples of a micro-batch.
  [[nodiscard]] std::vector<std::int64_t> samples(const MicroBatchRange& range) const;
  [[nodiscard]] BatchSize size(const MicroBatchRange& range) const;

 private:
  /// Of an epoch's position: where it is among the samples, bucket behind bucket, before each is permuted.
  [[nodiscard]] std::int64_t place_of(std::int64_t position, std::int64_t epoch) const;

  std::int64_t size_;
  std::vector<LengthBucket> buckets_;  ///< at least one
  Options options_;
};

}  // namespace stagecraft
