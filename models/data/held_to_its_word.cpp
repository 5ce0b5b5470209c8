#include "models/data/held_to_its_word.h"

#include "models/data/buckets.h"
#include "models/tensors/libtorch_error.h"
#include "models/tensors/shape_text.h"

#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

namespace stagecraft {
namespace {

const char* name_of(Split split) { return split == Split::train ? "training" : "validation"; }

/// "training samples 0 to 15"; shuffled ones by their ends.
std::string samples_text(Split split, const std::vector<std::int64_t>& indices) {
  if (indices.empty()) return fmt::format("no {} samples", name_of(split));
  const auto [least, most] = std::minmax_element(indices.begin(), indices.end());
  return *least == *most
             ? fmt::format("{} sample {}", name_of(split), *least)
             : fmt::format("{} {} samples from {} to {}", indices.size(), name_of(split), *least, *most);
}

class HeldToItsWord final : public Dataset {
 public:
  HeldToItsWord(std::unique_ptr<Dataset> data, const std::string& name)
      : HeldToItsWord(*data, fmt::format("data set \"{}\"", name)) {
    owned_ = std::move(data);
  }

  std::int64_t size(Split split) const override {
    return told("size()", [&] { return data_.size(split); });
  }
  SampleSpec sample() const override { return sample_; }
  at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    return read("inputs", sample_.field("inputs"), split, indices,
                [&] { return data_.inputs(split, indices); });
  }
  at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    return read("targets", sample_.field("targets"), split, indices,
                [&] { return data_.targets(split, indices); });
  }
  at::Tensor field(Split split, const std::string& name,
                   const std::vector<std::int64_t>& indices) const override {
    return read("\"" + name + "\"", sample_.field(name), split, indices,
                [&] { return data_.field(split, name, indices); });
  }
  std::vector<std::int64_t> lengths(Split split) const override {
    std::vector<std::int64_t> all = told("lengths()", [&] { return data_.lengths(split); });
    if (!all.empty() && static_cast<std::int64_t>(all.size()) != size(split)) {
      throw InputError(fmt::format("{}: gives the lengths of {} {} samples, and has {}", name_, all.size(),
                                   name_of(split), size(split)));
    }
    return all;
  }
  std::vector<LengthBucket> buckets(Split split) const override {
    return told("buckets()", [&] { return data_.buckets(split); });
  }
  const Dataset& uncut() const override { return uncut_ ? *uncut_ : *this; }
  bool reads_quickly() const override {
    return told("reads_quickly()", [&] { return data_.reads_quickly(); });
  }
  SampleOrigin origin(Split split, const std::string& field, std::int64_t index) const override {
    return told("origin()", [&] { return data_.origin(split, field, index); });
  }
  std::string fingerprint() const override {
    return told("fingerprint()", [&] { return data_.fingerprint(); });
  }
  std::string summary() const override {
    return told("summary()", [&] { return data_.summary(); });
  }

 private:
  HeldToItsWord(const Dataset& data, std::string name) : data_(data), name_(std::move(name)) {
    sample_ = told("sample()", [&] { return data_.sample(); });
    for (const Split split : {Split::train, Split::validation}) {
      if (size(split) < 0) {
        throw InputError(
            fmt::format("{}: says that it has {} {} samples", name_, size(split), name_of(split)));
      }
    }
    for (const std::int64_t extent : sample_.shape) {
      if (extent < 0) {
        throw InputError(fmt::format("{}: says that samples are of {}", name_, shape_text(sample_.shape)));
      }
    }
    if (const Dataset& its = told("uncut()", [&]() -> const Dataset& { return data_.uncut(); });
        &its != &data_) {
      uncut_.reset(new HeldToItsWord(its, name_));
    }
  }

  template <class Work>
  std::invoke_result_t<Work> told(const char* what, const Work& work) const {
    return named([&] { return fmt::format("{}, {}", name_, what); }, work);
  }

  template <class Work>
  at::Tensor read(const std::string& what, const std::optional<FieldSpec>& promised, Split split,
                  const std::vector<std::int64_t>& indices, const Work& work) const {
    const auto here = [&] { return fmt::format("{}: {} of {}", name_, what, samples_text(split, indices)); };
    at::Tensor batch = named(here, work);
    if (!promised) return batch;
    if (!batch.defined()) throw InputError(here() + ": an undefined tensor");
    std::vector<std::int64_t> shape = sample_.cut(promised->shape, length_of(buckets(split), indices));
    shape.insert(shape.begin(), static_cast<std::int64_t>(indices.size()));
    if (batch.scalar_type() != promised->dtype) {
      throw InputError(fmt::format("{}: they are of type {}, and its sample() says {}", here(),
                                   c10::toString(batch.scalar_type()), c10::toString(promised->dtype)));
    }
    // A single number per sample may be a column too, and a column single numbers: losses take both.
    const bool as_promised = batch.sizes() == at::IntArrayRef(shape) ||
                             (promised->name == "targets" && batch.numel() == c10::multiply_integers(shape) &&
                              batch.dim() > 0 && batch.size(0) == shape.front());
    if (as_promised) return batch;
    throw InputError(fmt::format("{}: they are of {}, and its sample() makes that {}", here(),
                                 shape_text(batch.sizes()), shape_text(shape)));
  }

  std::unique_ptr<Dataset> owned_;  ///< null: of another
  const Dataset& data_;
  std::string name_;
  SampleSpec sample_;
  std::unique_ptr<HeldToItsWord> uncut_;  ///< null: no sample is cut
};

/// Numbers that something is looked up by.
void require_below(const at::Tensor& batch, std::int64_t end, const std::string& file,
                   const std::string& what) {
  if (batch.numel() == 0 || c10::isFloatingType(batch.scalar_type())) return;
  const auto least = batch.min().item<std::int64_t>(), most = batch.max().item<std::int64_t>();
  if (least >= 0 && most < end) return;
  throw InputError(
      {file, "/data"},
      fmt::format("{}: {} is among them, expected numbers from 0 to {}: its sample() says {} of them", what,
                  least < 0 ? least : most, end - 1, end));
}

}  // namespace

std::unique_ptr<Dataset> held_to_its_word(std::unique_ptr<Dataset> data, const std::string& name) {
  return std::make_unique<HeldToItsWord>(std::move(data), name);
}

void check_first_batches(const Dataset& data, bool reads_targets, std::int64_t samples,
                         const std::string& file, const std::string& name) {
  const SampleSpec sample = data.sample();
  for (const Split split : {Split::train, Split::validation}) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(samples, data.size(split))));
    if (indices.empty()) continue;
    std::iota(indices.begin(), indices.end(), std::int64_t{0});
    const auto place = [&](const char* what) {
      return fmt::format("data set \"{}\": {} of {}", name, what, samples_text(split, indices));
    };
    const at::Tensor inputs = data.inputs(split, indices);
    const bool tokens = sample.targets == Targets::tokens;
    if (tokens && sample.dtype == at::kLong) require_below(inputs, sample.classes, file, place("inputs"));
    const bool classes = tokens || sample.targets == Targets::classes;
    if (classes && reads_targets) {
      require_below(data.targets(split, indices), sample.classes, file, place("targets"));
    }
    for (const FieldSpec& field : sample.fields) (void)data.field(split, field.name, indices);
  }
}

}  // namespace stagecraft
