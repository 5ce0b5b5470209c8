#include "stagecraft/models/data/sample_order.h"

#include "stagecraft/base/error.h"
#include "stagecraft/models/data/mix.h"

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
    const std::int64_t batch = options_.batch;
    const std::int64_t at = mini_batch(p / batch, range.epoch) * batch + p % batch;
    const std::size_t bucket = bucket_at(at);
    std::int64_t first = 0;
    for (std::size_t k = 0; k < bucket; ++k) first += buckets_[k].samples;
    const std::uint64_t seed = bucket == 0 ? options_.seed : mix(options_.seed, bucket);
    const Shuffle shuffle(buckets_[bucket].samples, seed, range.epoch, options_.shuffle);
    found.push_back(first + shuffle(at - first));
  }
  return found;
}

BatchSize SampleOrder::size(const MicroBatchRange& range) const {
  const std::int64_t last = range.first + range.count - 1, batch = options_.batch;
  const std::int64_t at = mini_batch(last / batch, range.epoch) * batch + last % batch;
  return {range.count, buckets_[bucket_at(at)].length};
}

std::size_t SampleOrder::bucket_at(std::int64_t place) const {
  STAGECRAFT_CHECK(place >= 0 && place < size_, fmt::format("position {} in an epoch of {}", place, size_));
  std::size_t bucket = 0;
  while (place >= buckets_[bucket].samples) place -= buckets_[bucket++].samples;
  return bucket;
}

std::int64_t SampleOrder::mini_batch(std::int64_t number, std::int64_t epoch) const {
  const std::int64_t whole = size_ / options_.batch;
  if (buckets_.size() == 1 || number >= whole) return number;  // a short one stays the last
  return Shuffle(whole, mix(options_.seed, buckets_.size()), epoch, options_.shuffle)(number);
}

}  // namespace stagecraft
