#include "models/data/sample_order.h"

#include "base/error.h"
#include "base/mix.h"
#include "models/data/buckets.h"

#include <fmt/format.h>

namespace stagecraft {

SampleOrder::SampleOrder(const Dataset& data, Split split, const Options& options)
    : size_(data.size(split)), buckets_(data.buckets(split)), options_(options) {
  if (buckets_.empty()) buckets_ = {{kWholeLength, size_}};
  STAGECRAFT_CHECK(options.batch >= 1, fmt::format("mini-batches of {} samples", options.batch));
}

std::vector<std::int64_t> SampleOrder::samples(const MicroBatchRange& range) const {
  std::vector<std::int64_t> found;
  for (std::int64_t p = range.first; p < range.first + range.count; ++p) {
    const std::int64_t place = place_of(p, range.epoch);
    std::size_t bucket = 0;
    std::int64_t first = 0;
    while (place >= first + buckets_[bucket].samples) first += buckets_[bucket++].samples;
    const std::uint64_t seed = bucket == 0 ? options_.seed : mix(options_.seed, bucket);
    const Shuffle shuffle(buckets_[bucket].samples, seed, range.epoch, options_.shuffle);
    found.push_back(first + shuffle(place - first));
  }
  return found;
}

BatchSize SampleOrder::size(const MicroBatchRange& range) const {
  const std::int64_t last = place_of(range.first + range.count - 1, range.epoch);
  return {range.count, length_of(buckets_, {last})};
}

std::int64_t SampleOrder::place_of(std::int64_t position, std::int64_t epoch) const {
  STAGECRAFT_CHECK(position >= 0 && position < size_,
                   fmt::format("position {} in an epoch of {}", position, size_));
  const std::int64_t batch = options_.batch, number = position / batch, whole = size_ / batch;
  if (buckets_.size() == 1 || number >= whole) return position;  // a short mini-batch stays the last
  const Shuffle shuffle(whole, mix(options_.seed, buckets_.size()), epoch, options_.shuffle);
  return shuffle(number) * batch + position % batch;
}

}  // namespace stagecraft
