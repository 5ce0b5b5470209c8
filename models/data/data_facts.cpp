#include "models/data/data_facts.h"

#include "base/error.h"

#include <utility>

namespace stagecraft {
namespace {

class ToldOf final : public Dataset {
 public:
  explicit ToldOf(DataFacts facts) : facts_(std::move(facts)) {}

  [[nodiscard]] std::int64_t size(Split split) const override {
    return split == Split::train ? facts_.training_samples : facts_.validation_samples;
  }
  [[nodiscard]] SampleSpec sample() const override {
    SampleSpec spec{facts_.shape, facts_.tokens ? at::kLong : at::kFloat, facts_.classes,
                    static_cast<Targets>(facts_.targets)};
    for (const FieldFacts& field : facts_.fields) {
      spec.fields.push_back({field.name, field.shape, static_cast<at::ScalarType>(field.dtype)});
    }
    return spec;
  }
  [[nodiscard]] at::Tensor inputs(Split, const std::vector<std::int64_t>&) const override { return refuse(); }
  [[nodiscard]] at::Tensor targets(Split, const std::vector<std::int64_t>&) const override {
    return refuse();
  }
  [[nodiscard]] std::vector<LengthBucket> buckets(Split split) const override {
    std::vector<LengthBucket> all;
    for (const BucketFacts& bucket :
         split == Split::train ? facts_.training_buckets : facts_.validation_buckets) {
      all.push_back({bucket.length, bucket.samples});
    }
    return all;
  }
  [[nodiscard]] std::string fingerprint() const override { return facts_.fingerprint; }
  [[nodiscard]] std::string summary() const override { return facts_.summary; }

 private:
  static at::Tensor refuse() {
    STAGECRAFT_CHECK(false, "a rank whose stages load nothing reads no data");
    return {};
  }

  DataFacts facts_;
};

std::vector<BucketFacts> bucket_facts(const Dataset& data, Split split) {
  std::vector<BucketFacts> facts;
  for (const LengthBucket& bucket : data.buckets(split)) facts.push_back({bucket.length, bucket.samples});
  return facts;
}

}  // namespace

DataFacts facts_of(const Dataset& data) {
  const SampleSpec sample = data.sample();
  std::vector<FieldFacts> fields;
  for (const FieldSpec& field : sample.fields) {
    fields.push_back({field.name, field.shape, static_cast<int>(field.dtype)});
  }
  return {.training_samples = data.size(Split::train),
          .validation_samples = data.size(Split::validation),
          .shape = sample.shape,
          .tokens = sample.dtype == at::kLong,
          .classes = sample.classes,
          .targets = static_cast<int>(sample.targets),
          .fields = std::move(fields),
          .training_buckets = bucket_facts(data, Split::train),
          .validation_buckets = bucket_facts(data, Split::validation),
          .fingerprint = data.fingerprint(),
          .summary = data.summary()};
}

std::unique_ptr<Dataset> dataset_of(DataFacts facts) { return std::make_unique<ToldOf>(std::move(facts)); }

}  // namespace stagecraft
