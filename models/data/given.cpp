#include "models/data/given.h"

#include "base/error.h"
#include "base/fields.h"
#include "base/nearest.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

constexpr const char* kType = "given";

at::ScalarType type_of(const GivenField& field) {
  switch (field.dtype) {
    case GivenType::float32:
      return at::kFloat;
    case GivenType::float64:
      return at::kDouble;
    case GivenType::bfloat16:
      return at::kBFloat16;
    case GivenType::float16:
      return at::kHalf;
    case GivenType::int64:
      return at::kLong;
  }
  return at::kFloat;
}

std::vector<std::string> names_of(const GivenDataConfig& config) {
  std::vector<std::string> names;
  for (const GivenField& field : config.fields) names.push_back(field.name);
  return names;
}

InputError refusal(const std::string& field, const std::string& why) {
  return {{"the batch", ""}, fmt::format("\"{}\" {}", field, why)};
}

/// Whole numbers of any width, as data sets hand them on.
at::ScalarType read_as(at::ScalarType given) {
  return c10::isIntegralType(given, /*includeBool=*/true) ? at::kLong : given;
}

/// Into the same memory where it fits, so that large batches cost no page faults each time.
void copy_into(at::Tensor& held, const at::Tensor& given) {
  if (!held.defined() || held.sizes() != given.sizes() || held.scalar_type() != given.scalar_type()) {
    held = at::empty_like(given, at::MemoryFormat::Contiguous);
  }
  held.copy_(given);
}

/// Samples that a batch may have: those in place p are numbered from p times this number on.
constexpr std::int64_t kMostOfABatch = kMostGivenSamples / static_cast<std::int64_t>(GivenBatches::kPlaces);

}  // namespace

void describe(Fields& f, GivenDataConfig& c) {
  f.optional("inputs", c.inputs, "the field that the model's first layer reads", json::non_empty());
  f.optional("fields", c.fields, "what each batch has");
  f.optional("lengths", c.lengths, "that samples may be cut to, ascending; empty: none is cut");
  f.optional("classes", c.classes, "of the targets, or the vocabulary; 0: nobody says", json::at_least(0));
}

GivenBatches::GivenBatches(GivenDataConfig config, std::int64_t samples, Sizes sizes)
    : config_(std::move(config)), samples_(samples), sizes_(sizes) {}

std::int64_t GivenBatches::length_in(const GivenField& field, const at::Tensor& given) const {
  const at::IntArrayRef found = given.sizes().slice(1);
  if (found == at::IntArrayRef(field.shape)) return kWholeLength;
  const auto cut_of = [&](const GivenField& its) {
    return !config_.lengths.empty() && !its.shape.empty() && its.shape.front() == config_.lengths.back();
  };
  const bool differs_in_length = found.size() == field.shape.size() && cut_of(field) &&
                                 found.slice(1) == at::IntArrayRef(field.shape).slice(1);
  if (!differs_in_length) {
    throw refusal(field.name, fmt::format("has samples of [{}], and the pipeline was made for [{}]{}",
                                          fmt::join(found, ", "), fmt::join(field.shape, ", "),
                                          config_.lengths.empty() ? "" : ", or one of its lengths"));
  }
  if (std::ranges::find(config_.lengths, found.front()) == config_.lengths.end()) {
    throw refusal(field.name, fmt::format("has samples of length {}, and the pipeline was made for {}",
                                          found.front(), fmt::join(config_.lengths, ", ")));
  }
  return found.front();
}

std::int64_t GivenBatches::give(const GivenTensors& batch, std::size_t place) {
  for (const auto& [name, tensor] : batch) {
    const auto names = names_of(config_);
    if (std::ranges::find(names, name) == names.end()) {
      throw refusal(name, fmt::format("is nothing that the pipeline reads; it reads {}{}",
                                      fmt::join(names, ", "), did_you_mean(name, names)));
    }
  }
  GivenTensors taken;
  std::int64_t rows = -1, length = kWholeLength;
  std::string first;
  for (const GivenField& field : config_.fields) {
    const auto found = batch.find(field.name);
    if (found == batch.end()) {
      throw refusal(field.name, fmt::format("is missing; the batch has {}", [&] {
                      std::vector<std::string> names;
                      for (const auto& [name, tensor] : batch) names.push_back(name);
                      return fmt::format("{}", fmt::join(names, ", "));
                    }()));
    }
    const at::Tensor& given = found->second;
    if (!given.device().is_cpu()) {
      throw refusal(field.name,
                    fmt::format("is on {}: hand over batches on the CPU, as a DataLoader makes them",
                                given.device().str()));
    }
    if (read_as(given.scalar_type()) != type_of(field)) {
      throw refusal(field.name, fmt::format("is {}, and the pipeline was made for {}",
                                            c10::toString(given.scalar_type()), enum_name(field.dtype)));
    }
    if (given.dim() < 1) throw refusal(field.name, "is one number, not rows of samples");
    if (rows < 0) {
      rows = given.size(0);
      first = field.name;
    }
    if (given.size(0) != rows) {
      throw refusal(field.name, fmt::format("has {} samples, \"{}\" has {}", given.size(0), first, rows));
    }
    if (const std::int64_t its = length_in(field, given); its != kWholeLength) length = its;
    taken.emplace(field.name, given.detach());
  }
  if (rows < 1) throw refusal(first, "has no samples");
  if (length != kWholeLength) {  // then all that goes by the length has it
    for (const GivenField& field : config_.fields) {
      const bool cut = !field.shape.empty() && field.shape.front() == config_.lengths.back();
      if (cut && taken.at(field.name).size(1) != length) {
        throw refusal(field.name,
                      fmt::format("is of length {}, others of {}", taken.at(field.name).size(1), length));
      }
    }
  }
  for (const auto& [name, given] : taken) copy_into(batches_.at(place)[name], given);
  rows_ = rows;
  const auto bucket = std::ranges::find(config_.lengths, length) - config_.lengths.begin();
  const std::int64_t whole = config_.lengths.empty() ? 0 : std::ssize(config_.lengths) - 1;
  return (length == kWholeLength ? whole : bucket) * kMostGivenSamples +
         static_cast<std::int64_t>(place) * kMostOfABatch;
}

std::int64_t GivenBatches::size(Split split) const {
  if (sizes_ == Sizes::one_batch) return split == Split::train ? samples_ : 0;
  return std::max<std::int64_t>(std::ssize(config_.lengths), 1) * kMostGivenSamples;
}

SampleSpec GivenBatches::sample() const {
  SampleSpec sample;
  sample.targets = Targets::none;
  sample.classes = config_.classes;
  for (const GivenField& field : config_.fields) {
    if (field.name == config_.inputs) {
      sample.shape = field.shape;
      sample.dtype = type_of(field);
    }
    sample.fields.push_back({field.name, field.shape, type_of(field)});
    if (field.name != "targets") continue;
    const bool numbers = field.dtype != GivenType::int64;
    sample.targets = numbers ? Targets::values : field.shape.empty() ? Targets::classes : Targets::tokens;
    if (!numbers) continue;
    sample.classes = 1;
    for (const std::int64_t size : field.shape) sample.classes *= size;
  }
  return sample;
}

at::Tensor GivenBatches::inputs(Split split, const std::vector<std::int64_t>& indices) const {
  return field(split, config_.inputs, indices);
}

at::Tensor GivenBatches::targets(Split split, const std::vector<std::int64_t>& indices) const {
  return field(split, "targets", indices);
}

at::Tensor GivenBatches::field(Split, const std::string& name,
                               const std::vector<std::int64_t>& indices) const {
  const at::Tensor& whole =
      batches_.at(static_cast<std::size_t>(indices.front() % kMostGivenSamples / kMostOfABatch)).at(name);
  const auto count = static_cast<std::int64_t>(indices.size());
  const std::int64_t first = indices.front() % kMostOfABatch;
  const bool in_a_row = std::ranges::adjacent_find(indices, [](std::int64_t a, std::int64_t b) {
                          return b != a + 1;
                        }) == indices.end();
  at::Tensor rows;
  if (in_a_row) {
    rows = whole.narrow(0, first, count);
  } else {  // the profiler's, which goes round a small batch
    std::vector<at::Tensor> each;
    for (const std::int64_t index : indices) each.push_back(whole.narrow(0, index % kMostOfABatch, 1));
    rows = at::cat(each);
  }
  return rows.to(read_as(rows.scalar_type()));
}

std::vector<LengthBucket> GivenBatches::buckets(Split) const {
  std::vector<LengthBucket> all;
  if (sizes_ == Sizes::one_batch) return all;
  for (std::size_t i = 0; i < config_.lengths.size(); ++i) {
    all.push_back({i + 1 < config_.lengths.size() ? config_.lengths[i] : kWholeLength, kMostGivenSamples});
  }
  return all;
}

SampleOrigin GivenBatches::origin(Split, const std::string&, std::int64_t index) const {
  return {{}, "the batch", index % kMostOfABatch};
}

std::string GivenBatches::fingerprint() const { return kType; }

std::string GivenBatches::summary() const {
  return fmt::format("batches of {} samples that the program brings", samples_);
}

bool is_given(const DataConfig& config) { return config.source.name() == kType; }

std::unique_ptr<Dataset> open_given(const GivenDataConfig&, const InputPlace& place) {
  throw InputError(place,
                   "these batches came from a program in Python, and a config alone has none: name a data "
                   "set in their place");
}

}  // namespace stagecraft
