#include "models/data/buckets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace stagecraft {
namespace {

class BucketedDataset final : public Dataset {
 public:
  BucketedDataset(std::unique_ptr<Dataset> data, const std::vector<std::int64_t>& lengths,
                  const InputPlace& place)
      : data_(std::move(data)), sample_(data_->sample()), lengths_(lengths) {
    for (const Split split : {Split::train, Split::validation}) sort(split, place);
  }

  [[nodiscard]] std::int64_t size(Split split) const override { return data_->size(split); }
  [[nodiscard]] SampleSpec sample() const override { return sample_; }
  [[nodiscard]] at::Tensor inputs(Split split, const std::vector<std::int64_t>& samples) const override {
    return cut(data_->inputs(split, numbers(split, samples)), split, samples);
  }
  [[nodiscard]] at::Tensor targets(Split split, const std::vector<std::int64_t>& samples) const override {
    return cut(data_->targets(split, numbers(split, samples)), split, samples);
  }
  [[nodiscard]] at::Tensor field(Split split, const std::string& name,
                                 const std::vector<std::int64_t>& samples) const override {
    return cut(data_->field(split, name, numbers(split, samples)), split, samples);
  }
  [[nodiscard]] std::vector<LengthBucket> buckets(Split split) const override { return of(split).buckets; }
  [[nodiscard]] const Dataset& uncut() const override { return data_->uncut(); }
  [[nodiscard]] bool reads_quickly() const override { return data_->reads_quickly(); }
  [[nodiscard]] SampleOrigin origin(Split split, const std::string& field,
                                    std::int64_t index) const override {
    return data_->origin(split, field, numbers(split, {index}).front());
  }
  [[nodiscard]] std::string fingerprint() const override {
    return fmt::format("{} in buckets of {}", data_->fingerprint(), fmt::join(lengths_, ", "));
  }
  [[nodiscard]] std::string summary() const override {
    std::vector<std::string> told;
    for (std::size_t k = 0; k < lengths_.size(); ++k) {
      told.push_back(fmt::format("{} of {}", of(Split::train).buckets[k].samples, lengths_[k]));
    }
    return fmt::format("{}; cut to {} positions: {}", data_->summary(), fmt::join(lengths_, ", "),
                       fmt::join(told, ", "));
  }

 private:
  struct Sorted {
    std::vector<LengthBucket> buckets;
    std::vector<std::int64_t> numbers;  ///< of `data_`, by our own
  };
  [[nodiscard]] const Sorted& of(Split split) const { return sorted_[split == Split::train ? 0 : 1]; }

  void sort(Split split, const InputPlace& place) {
    Sorted& its = sorted_[split == Split::train ? 0 : 1];
    const std::vector<std::int64_t> of_samples = data_->lengths(split);
    if (data_->size(split) > 0 && of_samples.empty()) {
      throw InputError(place,
                       "this data does not say how long its samples are: expected tokens with \"documents\": "
                       "\"padded\", or arrays with one that `mask` names");
    }
    std::vector<std::vector<std::int64_t>> by_bucket(lengths_.size());
    for (std::size_t i = 0; i < of_samples.size(); ++i) {
      const auto bucket = std::lower_bound(lengths_.begin(), lengths_.end() - 1, of_samples[i]);
      by_bucket[static_cast<std::size_t>(bucket - lengths_.begin())].push_back(static_cast<std::int64_t>(i));
    }
    for (std::size_t k = 0; k < lengths_.size(); ++k) {
      const bool whole = k + 1 == lengths_.size();
      its.buckets.push_back(
          {whole ? kWholeLength : lengths_[k], static_cast<std::int64_t>(by_bucket[k].size())});
      its.numbers.insert(its.numbers.end(), by_bucket[k].begin(), by_bucket[k].end());
    }
  }

  [[nodiscard]] std::vector<std::int64_t> numbers(Split split,
                                                  const std::vector<std::int64_t>& samples) const {
    std::vector<std::int64_t> found;
    for (const std::int64_t sample : samples)
      found.push_back(of(split).numbers.at(static_cast<std::size_t>(sample)));
    return found;
  }

  [[nodiscard]] at::Tensor cut(const at::Tensor& batch, Split split,
                               const std::vector<std::int64_t>& samples) const {
    const std::vector<std::int64_t> shape =
        sample_.cut(batch.sizes().slice(1).vec(), length_of(of(split).buckets, samples));
    if (shape.empty() || shape.front() == batch.size(1)) return batch;
    return batch.narrow(1, 0, shape.front()).contiguous();
  }

  std::unique_ptr<Dataset> data_;
  SampleSpec sample_;
  std::vector<std::int64_t> lengths_;
  std::array<Sorted, 2> sorted_;
};

}  // namespace

std::unique_ptr<Dataset> in_buckets(std::unique_ptr<Dataset> data, const std::vector<std::int64_t>& lengths,
                                    const InputPlace& place) {
  const SampleSpec sample = data->sample();
  if (sample.shape.empty()) throw InputError(place, "samples are single numbers and have no length");
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > (i == 0 ? 0 : lengths[i - 1])) continue;
    throw InputError({place.file, fmt::format("{}/{}", place.pointer, i)},
                     fmt::format("expected lengths that ascend from 1 on, found {}", lengths[i]));
  }
  if (lengths.back() != sample.shape.front()) {
    throw InputError({place.file, fmt::format("{}/{}", place.pointer, lengths.size() - 1)},
                     fmt::format("expected {}, the length of a sample, as the last one, found {}",
                                 sample.shape.front(), lengths.back()));
  }
  return std::make_unique<BucketedDataset>(std::move(data), lengths, place);
}

std::int64_t length_of(const std::vector<LengthBucket>& buckets, const std::vector<std::int64_t>& samples) {
  std::int64_t last = *std::max_element(samples.begin(), samples.end());
  for (const LengthBucket& bucket : buckets) {
    if (last < bucket.samples) return bucket.length;
    last -= bucket.samples;
  }
  return kWholeLength;
}

double computed_positions(const Dataset& data) {
  const SampleSpec sample = data.sample();
  double whole = 0, computed = 0;
  for (const auto& [length, samples] : data.buckets(Split::train)) {
    const auto rows = static_cast<double>(samples);
    whole += rows * static_cast<double>(sample.shape.front());
    computed += rows * static_cast<double>(sample.cut(sample.shape, length).front());
  }
  return whole == 0 ? 1 : computed / whole;
}

}  // namespace stagecraft
