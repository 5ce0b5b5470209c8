#include "models/data/synthetic.h"

#include "base/files.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "base/mix.h"
#include "schedules/program/segments.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cmath>

namespace stagecraft {

namespace {

constexpr double kNoise = 1.5;        // of a feature, beside centres in [-1, 1]
constexpr double kPredictable = 0.9;  // share of tokens that follow from the one before

constexpr std::int64_t kMostNumbers = 1'000'000'000'000'000;

/// What a stream of numbers is for; each has its own.
enum class Stream : std::uint64_t { label, feature, centre, map, token, surprise, table };

/// Sizes and streams common to the three tasks.
class Synthetic : public Dataset {
 public:
  explicit Synthetic(const SyntheticDataConfig& config) : config_(config) {
    for (const std::int64_t extent : config.shape) elements_ *= extent;
  }
  [[nodiscard]] std::int64_t size(Split split) const override {
    return split == Split::train ? config_.samples : config_.validation_samples;
  }
  [[nodiscard]] std::string fingerprint() const override {
    return stagecraft::fingerprint(json::write(config_).dump());
  }
  [[nodiscard]] std::string summary() const override {
    return fmt::format("synthetic {}: {} training and {} validation samples of {}, {} {}", config_.task,
                       config_.samples, config_.validation_samples, fmt::join(config_.shape, " x "),
                       config_.classes,
                       config_.task == "regression" ? "outputs"
                       : config_.task == "tokens"   ? "tokens in the vocabulary"
                                                    : "classes");
  }

 protected:
  /// Number `k` of a stream that belongs to the data set.
  [[nodiscard]] std::uint64_t fixed(Stream stream, std::int64_t k) const {
    return mix(config_.seed, stream, k);
  }
  /// Number `k` of a stream that belongs to one sample.
  [[nodiscard]] std::uint64_t of_sample(Stream stream, Split split, std::int64_t index,
                                        std::int64_t k = 0) const {
    return mix(config_.seed, stream, split, index, k);
  }
  [[nodiscard]] static double symmetric(std::uint64_t hash) { return 2 * unit_interval(hash) - 1; }
  [[nodiscard]] std::int64_t below_classes(std::uint64_t hash) const {
    return static_cast<std::int64_t>(hash % static_cast<std::uint64_t>(config_.classes));
  }
  /// An empty batch of samples of `shape`.
  [[nodiscard]] static at::Tensor batch_of(std::size_t samples, std::vector<std::int64_t> shape,
                                           at::ScalarType dtype) {
    shape.insert(shape.begin(), static_cast<std::int64_t>(samples));
    return at::empty(shape, dtype);
  }

  SyntheticDataConfig config_;
  std::int64_t elements_ = 1;
};

class Classification final : public Synthetic {
 public:
  using Synthetic::Synthetic;
  [[nodiscard]] SampleSpec sample() const override { return {config_.shape, at::kFloat, config_.classes}; }

  [[nodiscard]] at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    at::Tensor batch = batch_of(indices.size(), config_.shape, at::kFloat);
    float* out = batch.mutable_data_ptr<float>();
    for (const std::int64_t index : indices) {
      const std::int64_t first = label(split, index) * elements_;
      for (std::int64_t k = 0; k < elements_; ++k)
        *out++ = static_cast<float>(symmetric(fixed(Stream::centre, first + k)) +
                                    kNoise * symmetric(of_sample(Stream::feature, split, index, k)));
    }
    return batch;
  }

  [[nodiscard]] at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    at::Tensor batch = batch_of(indices.size(), {}, at::kLong);
    auto* out = batch.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) *out++ = label(split, index);
    return batch;
  }

 private:
  [[nodiscard]] std::int64_t label(Split split, std::int64_t index) const {
    return below_classes(of_sample(Stream::label, split, index));
  }
};

class Regression final : public Synthetic {
 public:
  using Synthetic::Synthetic;
  [[nodiscard]] SampleSpec sample() const override {
    return {config_.shape, at::kFloat, config_.classes, Targets::values};
  }

  [[nodiscard]] at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    at::Tensor batch = batch_of(indices.size(), config_.shape, at::kFloat);
    float* out = batch.mutable_data_ptr<float>();
    for (const std::int64_t index : indices)
      for (std::int64_t k = 0; k < elements_; ++k) *out++ = static_cast<float>(feature(split, index, k));
    return batch;
  }

  [[nodiscard]] at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    at::Tensor batch = batch_of(indices.size(), {config_.classes}, at::kFloat);
    float* out = batch.mutable_data_ptr<float>();
    const double scale = std::sqrt(3.0 / static_cast<double>(elements_));  // targets of variance about 1/3
    for (const std::int64_t index : indices) {
      for (std::int64_t output = 0; output < config_.classes; ++output) {
        double sum = 0;
        for (std::int64_t k = 0; k < elements_; ++k)
          sum += symmetric(fixed(Stream::map, output * elements_ + k)) * feature(split, index, k);
        *out++ = static_cast<float>(scale * sum);
      }
    }
    return batch;
  }

 private:
  [[nodiscard]] double feature(Split split, std::int64_t index, std::int64_t k) const {
    return symmetric(of_sample(Stream::feature, split, index, k));
  }
};

class SyntheticTokens final : public Synthetic {
 public:
  using Synthetic::Synthetic;
  [[nodiscard]] SampleSpec sample() const override {
    return {config_.shape, at::kLong, config_.classes, Targets::tokens};
  }
  [[nodiscard]] at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    return window(split, indices, 0);
  }
  [[nodiscard]] at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    return window(split, indices, 1);
  }

 private:
  [[nodiscard]] at::Tensor window(Split split, const std::vector<std::int64_t>& indices,
                                  std::int64_t ahead) const {
    at::Tensor batch = batch_of(indices.size(), config_.shape, at::kLong);
    auto* out = batch.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      std::int64_t token = 0;
      for (std::int64_t k = 0; k < elements_ + ahead; ++k) {
        const bool follows =
            k > 0 && unit_interval(of_sample(Stream::surprise, split, index, k)) < kPredictable;
        token =
            below_classes(follows ? fixed(Stream::table, token) : of_sample(Stream::token, split, index, k));
        if (k >= ahead) *out++ = token;
      }
    }
    return batch;
  }
};

}  // namespace

void describe(Fields& f, SyntheticDataConfig& c) {
  f.optional("task", c.task,
             "classification, regression or tokens (shape is then [sequence], classes the vocabulary)");
  f.require(c.task == "classification" || c.task == "regression" || c.task == "tokens", "task",
            "expected \"classification\", \"regression\" or \"tokens\", found \"" + c.task + "\"");
  constexpr auto most_samples = static_cast<double>(kMostRunSamples);
  f.optional("samples", c.samples, "training samples", json::between(1, most_samples));
  f.optional("validation_samples", c.validation_samples, "validation samples",
             json::between(0, most_samples));
  f.optional("shape", c.shape, "of one sample", json::non_empty());
  f.optional("classes", c.classes, "classes, outputs of the regression, or vocabulary", json::at_least(1));
  f.optional("seed", c.seed, "of the data");
}

std::unique_ptr<Dataset> open_synthetic(const SyntheticDataConfig& config, const InputPlace& place) {
  // Elements are numbered over all classes.
  std::int64_t numbers = config.classes;
  for (const std::int64_t extent : config.shape) {
    if (extent < 1)
      throw InputError({place.file, place.pointer + "/shape"},
                       fmt::format("[{}] has an extent below 1", fmt::join(config.shape, ", ")));
    if (extent > kMostNumbers / numbers)
      throw InputError({place.file, place.pointer + "/shape"},
                       fmt::format("[{}] times {} classes: expected a product of at most {}",
                                   fmt::join(config.shape, ", "), config.classes, kMostNumbers));
    numbers *= extent;
  }
  if (config.task == "classification") return std::make_unique<Classification>(config);
  if (config.task == "regression") return std::make_unique<Regression>(config);
  if (config.shape.size() != 1)
    throw InputError({place.file, place.pointer + "/shape"},
                     fmt::format("[{}]: token samples have one extent, the sequence length",
                                 fmt::join(config.shape, ", ")));
  return std::make_unique<SyntheticTokens>(config);
}

}  // namespace stagecraft
