#include "models/check/checked_data.h"

#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Scalar.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

/// One of the model's checks, of a field that the data set has.
struct DataCheck {
  std::string source;  ///< inputs, targets or another of the data set's fields
  NumberCheck check;
};

/// Numbers of one type as they lie in memory: those whose exponent is all ones are infinite or NaN.
template <class Bits>
std::optional<std::int64_t> first_not_finite(const void* data, std::int64_t count, Bits exponent) {
  const auto* bits = static_cast<const Bits*>(data);
  bool found = false;
  for (std::int64_t i = 0; i < count; ++i) found |= (bits[i] & exponent) == exponent;
  if (!found) return std::nullopt;
  return std::find_if(bits, bits + count, [&](Bits number) { return (number & exponent) == exponent; }) -
         bits;
}

/// Takes no memory: batches are looked at while a run's memory is full.
std::optional<at::Scalar> not_finite(const at::Tensor& batch) {
  if (!batch.defined()) return std::nullopt;
  const c10::InferenceMode guard;
  const at::Tensor numbers = batch.contiguous();
  const void* data = numbers.const_data_ptr();
  std::optional<std::int64_t> found;
  switch (numbers.scalar_type()) {
    case at::kFloat:
      found = first_not_finite<std::uint32_t>(data, numbers.numel(), 0x7f800000U);
      break;
    case at::kDouble:
      found = first_not_finite<std::uint64_t>(data, numbers.numel(), 0x7ff0000000000000U);
      break;
    case at::kHalf:
      found = first_not_finite<std::uint16_t>(data, numbers.numel(), 0x7c00U);
      break;
    case at::kBFloat16:
      found = first_not_finite<std::uint16_t>(data, numbers.numel(), 0x7f80U);
      break;
    default:
      break;
  }
  if (!found) return std::nullopt;
  return numbers.view(-1).select(0, *found).item();
}

/// The first number that is not allowed.
std::optional<at::Scalar> outsider(const NumberCheck& check, const at::Tensor& batch) {
  if (check.finite) return not_finite(batch);
  at::Tensor numbers;
  try {
    const c10::InferenceMode guard;
    numbers = check.numbers ? check.numbers(batch) : batch;
    if (!numbers.defined() || c10::isFloatingType(numbers.scalar_type())) return std::nullopt;
    numbers = numbers.to(at::kLong).contiguous();
  } catch (const c10::Error&) {
    return std::nullopt;  // the model says what it cannot compute
  }
  const auto* first = numbers.const_data_ptr<std::int64_t>();
  const auto* end = first + numbers.numel();
  const auto* found = std::find_if(first, end, [&](std::int64_t number) {
    return (number < check.least || number >= check.end) && number != check.ignored;
  });
  return found == end ? std::nullopt : std::optional<at::Scalar>(*found);
}

std::string text_of(const at::Scalar& number) {
  return number.isIntegral(/*includeBool=*/true) ? fmt::format("{}", number.toLong())
                                                 : fmt::format("{}", number.toDouble());
}

std::string allowed(const NumberCheck& check) {
  if (check.finite) return "finite numbers";
  return fmt::format("{} to {}{}", check.least, check.end - 1,
                     check.ignored ? fmt::format(" (and {}, which does not count)", *check.ignored) : "");
}

/// The model's, by the data's names. Those of fields that the data lacks are compared with their fill values.
class Checks {
 public:
  Checks(const Model& model, const Loss& loss, const std::string& file) : file_(file) {
    std::vector<bool> is_input{true};  // for each value before the layer: whether it has the data's numbers
    for (const LayerPtr& layer : model.layers) {
      for (const NumberCheck& check : layer->facts().number_checks) {
        if (!check.field.empty()) {
          add_field(model, check);
        } else if (check.place < is_input.size() && is_input[check.place]) {
          add("inputs", check);
        }
      }
      std::vector<bool> behind;
      for (const std::optional<std::size_t>& from : layer->facts().carried()) {
        behind.push_back(from && *from < is_input.size() && is_input[*from]);
      }
      is_input = std::move(behind);
    }
    for (const NumberCheck& check : loss.number_checks(model.sample)) {
      if (check.field.empty()) {
        add("targets", check);
      } else {
        add_field(model, check);
      }
    }
  }

  [[nodiscard]] const std::vector<DataCheck>& all() const { return all_; }

 private:
  void add(const std::string& source, const NumberCheck& check) { all_.push_back({source, check}); }

  void add_field(const Model& model, const NumberCheck& check) {
    const auto field = std::ranges::find(model.fields, check.field, &BatchField::name);
    if (field == model.fields.end()) return;
    if (!field->from.empty()) {
      NumberCheck its = check;
      if (check.numbers) {
        its.numbers = [numbers = check.numbers, shape = field->shape](const at::Tensor& batch) {
          return numbers(fitted(batch, shape));
        };
      }
      return add(field->from, its);
    }
    std::vector<std::int64_t> shape = field->shape;
    shape.insert(shape.begin(), 2);
    const at::Tensor filled = at::full(shape, field->fill, at::TensorOptions(field->dtype));
    const std::optional<at::Scalar> found = outsider(check, filled);
    if (!found) return;
    throw InputError({file_, "/model/fields"},
                     fmt::format("\"{}\" is filled with {}, and {} takes {}", field->name, field->fill,
                                 check.reader, allowed(check)));
  }

  std::string file_;
  std::vector<DataCheck> all_;
};

class CheckedDataset final : public Dataset {
 public:
  CheckedDataset(std::unique_ptr<Dataset> data, std::vector<DataCheck> checks, std::string file)
      : owned_(std::move(data)), data_(*owned_), checks_(std::move(checks)), file_(std::move(file)) {
    if (&data_.uncut() != &data_) uncut_.reset(new CheckedDataset(data_.uncut(), checks_, file_));
    const auto& whole = static_cast<const CheckedDataset&>(uncut());
    std::set<std::string> sources;
    for (const DataCheck& check : checks_) sources.insert(check.source);
    for (const std::string& source : sources) {
      for (const Split split : {Split::train, Split::validation}) whole.look_through(split, source);
    }
  }

  [[nodiscard]] std::int64_t size(Split split) const override { return data_.size(split); }
  [[nodiscard]] SampleSpec sample() const override { return data_.sample(); }
  [[nodiscard]] at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    return compared(split, "inputs", indices);
  }
  [[nodiscard]] at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    return compared(split, "targets", indices);
  }
  [[nodiscard]] at::Tensor field(Split split, const std::string& name,
                                 const std::vector<std::int64_t>& indices) const override {
    return compared(split, name, indices);
  }
  [[nodiscard]] std::vector<std::int64_t> lengths(Split split) const override { return data_.lengths(split); }
  [[nodiscard]] std::vector<LengthBucket> buckets(Split split) const override { return data_.buckets(split); }
  [[nodiscard]] const Dataset& uncut() const override { return uncut_ ? *uncut_ : *this; }
  [[nodiscard]] std::string fingerprint() const override { return data_.fingerprint(); }
  [[nodiscard]] std::string summary() const override { return data_.summary(); }
  [[nodiscard]] bool reads_quickly() const override { return data_.reads_quickly(); }
  [[nodiscard]] SampleOrigin origin(Split split, const std::string& field,
                                    std::int64_t index) const override {
    return data_.origin(split, field, index);
  }

 private:
  CheckedDataset(const Dataset& data, std::vector<DataCheck> checks, std::string file)
      : data_(data), checks_(std::move(checks)), file_(std::move(file)) {}

  [[nodiscard]] at::Tensor compared(Split split, const std::string& source,
                                    const std::vector<std::int64_t>& indices) const {
    at::Tensor batch = read_named(data_, split, source, indices);
    for (const DataCheck& check : checks_) {
      if (check.source == source) compare(split, check, indices, batch);
    }
    return batch;
  }

  void compare(Split split, const DataCheck& check, const std::vector<std::int64_t>& indices,
               const at::Tensor& batch) const {
    const std::optional<at::Scalar> found = outsider(check.check, batch);
    if (!found) return;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const at::Tensor one = batch.narrow(0, static_cast<std::int64_t>(i), 1);
      if (const auto its = outsider(check.check, one)) refuse(split, check, indices[i], *its, one);
    }
    refuse(split, check, indices.front(), *found, batch);
  }

  /// Or the model makes the number of others.
  static bool has(const at::Tensor& batch, const at::Scalar& number) {
    return number.isFloatingPoint() || batch.eq(number).any().item<bool>();
  }

  [[noreturn]] void refuse(Split split, const DataCheck& check, std::int64_t index, const at::Scalar& number,
                           const at::Tensor& its) const {
    const SampleOrigin origin = data_.origin(split, check.source, index);
    const bool known = !origin.place.file.empty();
    throw InputError(
        known ? origin.place : InputPlace{file_, "/data"},
        fmt::format("{}: sample {} {} {} in its {}, and {} takes {}", known ? origin.path : data_.summary(),
                    origin.sample, has(its, number) ? "has" : "leads to", text_of(number), check.source,
                    check.check.reader, allowed(check.check)));
  }

  /// All samples, or where that would take long what the data set says of them.
  void look_through(Split split, const std::string& source) const {
    constexpr std::int64_t kMostNumbers = std::int64_t{1} << 26U, kAtOnce = std::int64_t{1} << 18U;
    const std::int64_t samples = data_.size(split);
    const std::optional<FieldSpec> spec = sample().field(source);
    if (samples < 1 || !spec) return;
    std::int64_t each = 1;
    for (const std::int64_t size : spec->shape) each *= std::max<std::int64_t>(size, 1);
    if (!data_.reads_quickly() || samples > kMostNumbers / each) {
      for (const DataCheck& check : checks_) {
        if (check.source == source) look_at_vocabulary(split, check, *spec);
      }
      return;
    }
    const std::int64_t rows = std::max<std::int64_t>(kAtOnce / each, 1);
    for (std::int64_t first = 0; first < samples; first += rows) {
      std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(rows, samples - first)));
      std::iota(indices.begin(), indices.end(), first);
      (void)compared(split, source, indices);
    }
  }

  /// The largest number that it may hold is compared, where the model reads it as it is.
  void look_at_vocabulary(Split split, const DataCheck& check, const FieldSpec& spec) const {
    const SampleSpec of = sample();
    const bool tokens = check.source == "inputs" && of.dtype == at::kLong &&
                        (of.targets == Targets::tokens || of.targets == Targets::none);
    const bool classes =
        check.source == "targets" && (of.targets == Targets::classes || of.targets == Targets::tokens);
    if (!check.check.direct || !(tokens || classes) || of.classes < 1) return;
    std::vector<std::int64_t> shape = spec.shape;
    shape.insert(shape.begin(), 1);
    if (!outsider(check.check, at::full(shape, of.classes - 1, at::TensorOptions(at::kLong)))) return;
    const SampleOrigin origin = data_.origin(split, check.source, 0);
    const bool known = !origin.place.file.empty();
    throw InputError(
        known ? origin.place : InputPlace{file_, "/data"},
        fmt::format(
            "{}: its {} go up to {}, as its vocabulary or classes say, and {} takes {}; say how many there "
            "are, if it has no others",
            known ? origin.path : data_.summary(), check.source, of.classes - 1, check.check.reader,
            allowed(check.check)));
  }

  std::unique_ptr<Dataset> owned_;  ///< null: of another
  const Dataset& data_;
  std::vector<DataCheck> checks_;
  std::string file_;
  std::unique_ptr<CheckedDataset> uncut_;  ///< null: no sample is cut
};

}  // namespace

std::unique_ptr<Dataset> checked_for(std::unique_ptr<Dataset> data, const Model& model, const Loss& loss,
                                     const std::string& file) {
  const Checks checks(model, loss, file);
  if (checks.all().empty()) return data;
  return std::make_unique<CheckedDataset>(std::move(data), checks.all(), file);
}

}  // namespace stagecraft
