#include "models/data/arrays.h"

#include "base/file_kind.h"
#include "base/files.h"
#include "base/fingerprint.h"
#include "base/input_path.h"
#include "base/json.h"
#include "base/nearest.h"
#include "models/data/data_file.h"
#include "models/data/known_format.h"
#include "models/data/npy.h"
#include "models/data/stored_array.h"
#include "models/tensors/safetensors.h"

#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

namespace stagecraft {
namespace {

at::ScalarType batch_dtype(at::ScalarType stored) {
  return c10::isIntegralType(stored, /*includeBool=*/true) ? at::kLong : stored;
}

/// One file's arrays.
class Arrays {
 public:
  Arrays(const std::string& path, const InputPlace& place) : path_(path) {
    require_there(path, place);
    if (is_folder(path)) {
      arrays_ = open_npy_folder(path, place);
    } else {
      refuse_other(path, place);
      open_safetensors(path, place);
    }
    if (arrays_.empty()) {
      throw data_file_error(place, path_,
                            is_folder(path) ? "has no NAME.npy" + others_in(path) : "has no arrays");
    }
    for (const auto& [name, array] : arrays_) {
      if (array.shape().empty()) {
        throw data_file_error(place, path_, fmt::format("\"{}\" is one number, not rows of samples", name));
      }
      const std::int64_t rows = array.shape().front();
      if (rows_ < 0) rows_ = rows;
      if (rows != rows_) {
        throw data_file_error(place, path_,
                              fmt::format("\"{}\" has {} rows, an array before it {}", name, rows, rows_));
      }
    }
    if (rows_ < 1) throw data_file_error(place, path_, "has no samples");
  }

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string file_of(const std::string& name) const {
    return is_folder(path_) ? path_ + "/" + name + ".npy" : path_;
  }
  [[nodiscard]] const std::map<std::string, StoredArray>& all() const { return arrays_; }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, array] : arrays_) names.push_back(name);
    return names;
  }
  [[nodiscard]] std::optional<FieldSpec> spec(const std::string& name) const {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) return std::nullopt;
    const std::vector<std::int64_t>& shape = found->second.shape();
    return FieldSpec{name, {shape.begin() + 1, shape.end()}, batch_dtype(found->second.dtype())};
  }

  /// As they are stored.
  [[nodiscard]] at::Tensor batch(const std::string& name, const std::vector<std::int64_t>& indices) const {
    return arrays_.at(name).rows(indices);
  }
  /// Of whole numbers.
  [[nodiscard]] std::int64_t largest(const std::string& name) const {
    constexpr std::uint64_t kPiece = std::uint64_t{1} << 24U;  // bytes
    const StoredArray& array = arrays_.at(name);
    const auto row = std::max<std::uint64_t>(1, array.bytes() / static_cast<std::uint64_t>(rows_));
    const auto piece = static_cast<std::int64_t>(std::max<std::uint64_t>(1, kPiece / row));
    std::int64_t largest = 0;
    for (std::int64_t first = 0; array.bytes() > 0 && first < rows_; first += piece) {
      at::Tensor rows = array.rows(first, std::min(piece, rows_ - first));
      // LibTorch has no maximum of 16 bits without a sign.
      if (rows.scalar_type() == at::kUInt16) rows = rows.to(at::kInt);
      largest = std::max(largest, rows.max().item<std::int64_t>());
    }
    return largest;
  }

 private:
  void open_safetensors(const std::string& path, const InputPlace& place) try {
    const StoredSafetensors file(path);
    for (const auto& [name, entry] : file.entries()) {
      arrays_.emplace(name, StoredArray(file.file(), path, place, file.data_begin() + entry.begin,
                                        entry.dtype, entry.shape));
    }
  } catch (const InputError& error) {
    throw InputError(place, error.what());  // which names the file
  }

  static bool has_images(const std::string& path) {
    constexpr std::array<std::string_view, 4> kEndings{".jpg", ".jpeg", ".png", ".webp"};
    if (!is_folder(path)) return false;
    return std::ranges::any_of(names_in(path), [&](const std::string& name) {
      return std::ranges::any_of(kEndings, [&](std::string_view ending) { return name.ends_with(ending); });
    });
  }

  static void refuse_other(const std::string& path, const InputPlace& place) {
    const std::string other = known_format(beginning_of(path));
    if (other.empty() || other.starts_with("a safetensors file")) return;
    throw data_file_error(place, path, fmt::format("is no safetensors file, it is {}", other));
  }

  /// What a folder without arrays has in their place.
  static std::string others_in(const std::string& path) {
    for (const std::string& name : names_in(path)) {
      if (has_images(path + "/" + name)) {
        return fmt::format(
            "; its {} is a folder of images: `stagecraft-images {} --size N -o FOLDER` makes arrays of them",
            name, path);
      }
      const std::string other = known_format(beginning_of(path + "/" + name));
      if (!other.empty()) return fmt::format("; its {} is {}", name, other);
    }
    const std::string kind = kind_of_folder(path);
    return kind == "a folder" ? "" : fmt::format("; it is {}", kind);
  }

  std::string path_;
  std::int64_t rows_ = -1;
  std::map<std::string, StoredArray> arrays_;
};

/// Of names, shapes and both ends of each array: a file of gigabytes is not read for it.
std::string fingerprint_of(const std::vector<const Arrays*>& files) {
  constexpr std::uint64_t kEnd = std::uint64_t{1} << 16U;
  Fingerprint fingerprint;
  for (const Arrays* file : files) {
    for (const auto& [name, array] : file->all()) {
      fingerprint.add(
          fmt::format("{} {} [{}]", name, c10::toString(array.dtype()), fmt::join(array.shape(), ", ")));
      const auto add = [&, &whole = array](std::uint64_t begin, std::uint64_t end) {
        std::string bytes(end - begin, '\0');
        whole.read(begin, bytes.data(), bytes.size());
        fingerprint.add(bytes);
      };
      const std::uint64_t bytes = array.bytes();
      add(0, std::min(kEnd, bytes));
      if (bytes > kEnd) add(std::max(kEnd, bytes - kEnd), bytes);
    }
  }
  return fingerprint.text();
}

class ArraysDataset final : public Dataset {
 public:
  ArraysDataset(ArraysDataConfig config, const InputPlace& data)
      : config_(std::move(config)), place_(data), train_(config_.path, json::detail::child(data, "path")) {
    if (!config_.validation_path.empty()) {
      validation_.emplace(config_.validation_path, json::detail::child(data, "validation_path"));
      require_equal_arrays(json::detail::child(data, "validation_path"));
    }
    one_column_ = is_one_column();
    sample_ = found_sample(data);
    std::vector<const Arrays*> files{&train_};
    if (validation_) files.push_back(&*validation_);
    fingerprint_ = fingerprint_of(files);
    normalize(data);
  }

  [[nodiscard]] std::int64_t size(Split split) const override {
    return split == Split::train ? train_.rows() : validation_ ? validation_->rows() : 0;
  }
  [[nodiscard]] SampleSpec sample() const override { return sample_; }
  [[nodiscard]] at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    return field(split, config_.inputs, indices);
  }
  [[nodiscard]] at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    return field(split, config_.targets, indices);
  }
  [[nodiscard]] at::Tensor field(Split split, const std::string& name,
                                 const std::vector<std::int64_t>& indices) const override {
    at::Tensor rows = of(split).batch(name, indices);
    if (name == config_.targets && one_column_) rows = rows.squeeze(1);
    if (name == config_.inputs && mean_.defined())
      return rows.to(at::kFloat).div_(255).sub_(mean_).div_(deviation_);
    return rows.to(batch_dtype(rows.scalar_type()));
  }
  [[nodiscard]] std::vector<std::int64_t> lengths(Split split) const override {
    std::vector<std::int64_t> all;
    const std::optional<FieldSpec> mask = train_.spec(config_.mask);
    if (!mask || mask->shape.size() != 1 || sample_.shape.empty() || mask->shape[0] != sample_.shape[0])
      return all;
    for (std::int64_t i = 0; i < size(split); ++i) {
      const at::Tensor there = field(split, config_.mask, {i})[0].ne(0);
      const auto* position = there.const_data_ptr<bool>();
      std::int64_t length = there.numel();
      while (length > 1 && !position[length - 1]) --length;
      all.push_back(length);
    }
    return all;
  }
  [[nodiscard]] bool reads_quickly() const override { return true; }
  [[nodiscard]] SampleOrigin origin(Split split, const std::string& field,
                                    std::int64_t index) const override {
    const std::string& name = field == "inputs"    ? config_.inputs
                              : field == "targets" ? config_.targets
                                                   : field;
    const char* key = split == Split::train ? "path" : "validation_path";
    return {json::detail::child(place_, key), of(split).file_of(name), index};
  }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::string summary() const override {
    return fmt::format("{}: {} training and {} validation samples of {}", train_.path(), size(Split::train),
                       size(Split::validation), fmt::join(train_.names(), ", "));
  }

 private:
  [[nodiscard]] const Arrays& of(Split split) const {
    return split == Split::train ? train_ : validation_.value();
  }

  void require_equal_arrays(const InputPlace& place) const {
    for (const std::string& name : train_.names()) {
      const std::optional<FieldSpec> found = validation_->spec(name);
      const FieldSpec wanted = *train_.spec(name);
      if (found && found->shape == wanted.shape && found->dtype == wanted.dtype) continue;
      throw data_file_error(place, validation_->path(),
                            fmt::format("{} \"{}\", which {} has", found ? "has another type of" : "lacks",
                                        name, train_.path()));
    }
  }

  /// Classes as [rows, 1]: not one class per token, unless a sample is one token.
  [[nodiscard]] bool is_one_column() const {
    const std::vector<std::int64_t> one{1};
    const std::optional<FieldSpec> inputs = train_.spec(config_.inputs),
                                   targets = train_.spec(config_.targets);
    return inputs && targets && !c10::isFloatingType(targets->dtype) && targets->shape == one &&
           inputs->shape != one;
  }

  [[nodiscard]] SampleSpec found_sample(const InputPlace& data) const {
    const std::optional<FieldSpec> inputs = train_.spec(config_.inputs);
    if (!inputs) {
      throw InputError(
          json::detail::child(data, "inputs"),
          fmt::format("{} has no array \"{}\"{}; it has {}", train_.path(), config_.inputs,
                      did_you_mean(config_.inputs, train_.names()), fmt::join(train_.names(), ", ")));
    }
    SampleSpec sample{inputs->shape, inputs->dtype, config_.classes, Targets::none, {}};
    for (const std::string& name : train_.names()) {
      sample.fields.push_back(*train_.spec(name));
      if (name == config_.targets && one_column_) sample.fields.back().shape.clear();
    }
    std::optional<FieldSpec> targets = train_.spec(config_.targets);
    if (targets) {
      if (one_column_) targets->shape.clear();
      if (config_.targets != "targets") sample.fields.push_back({"targets", targets->shape, targets->dtype});
      const bool numbers = c10::isFloatingType(targets->dtype);
      sample.targets = numbers                  ? Targets::values
                       : targets->shape.empty() ? Targets::classes
                                                : Targets::tokens;
      if (numbers) {
        sample.classes = 1;
        for (const std::int64_t size : targets->shape) sample.classes *= size;
      }
    }
    if (sample.classes == 0) {
      std::int64_t most = 0;
      const auto look = [&](const std::optional<FieldSpec>& spec) {
        if (!spec || c10::isFloatingType(spec->dtype)) return;
        most = std::max(most, train_.largest(spec->name));
      };
      if (config_.mean.empty()) look(inputs);  // they stay whole numbers
      look(targets);
      sample.classes = most + 1;
    }
    return sample;
  }

  /// Inputs become numbers.
  void normalize(const InputPlace& data) {
    if (config_.mean.empty() && config_.deviation.empty()) return;
    const InputPlace place = json::detail::child(data, "mean");
    const StoredArray& images = train_.all().at(config_.inputs);
    if (images.shape().size() < 2 || images.dtype() != at::kByte) {
      throw InputError(place,
                       fmt::format("{} \"{}\" holds no images of bytes", train_.path(), config_.inputs));
    }
    const auto channels = static_cast<std::size_t>(images.shape()[1]);
    if (config_.mean.size() != channels || config_.deviation.size() != channels) {
      throw InputError(place,
                       fmt::format("expected a mean and a deviation for each of {} channels, found {} and {}",
                                   channels, config_.mean.size(), config_.deviation.size()));
    }
    std::vector<std::int64_t> shape(images.shape().size(), 1);
    shape[1] = images.shape()[1];
    mean_ = at::tensor(config_.mean, at::kFloat).view(shape);
    deviation_ = at::tensor(config_.deviation, at::kFloat).view(shape);
    sample_.dtype = at::kFloat;
    for (FieldSpec& field : sample_.fields) {
      if (field.name == config_.inputs) field.dtype = at::kFloat;
    }
    fingerprint_ = fmt::format("{} less {}, over {}", fingerprint_, fmt::join(config_.mean, " "),
                               fmt::join(config_.deviation, " "));
  }

  ArraysDataConfig config_;
  InputPlace place_;
  at::Tensor mean_, deviation_;  ///< of each channel of the inputs; undefined: they stay what they are
  Arrays train_;
  std::optional<Arrays> validation_;
  bool one_column_ = false;  ///< targets are [rows, 1] and read as [rows]
  SampleSpec sample_;
  std::string fingerprint_;
};

}  // namespace

void describe(Fields& f, ArraysDataConfig& c) {
  f.required("path", c.path, "safetensors file, or folder of .npy files, whose arrays have samples as rows",
             json::non_empty());
  f.optional("validation_path", c.validation_path, "the same of validation; empty: none");
  f.optional("inputs", c.inputs, "array that the model's first layer reads", json::non_empty());
  f.optional("targets", c.targets, "array that the loss compares with, where there is one",
             json::non_empty());
  f.optional("mask", c.mask, "array that is 0 where inputs are padding, for data.buckets", json::non_empty());
  f.optional("classes", c.classes, "of the targets, or the vocabulary; 0: found by reading them",
             json::at_least(0));
  f.optional("mean", c.mean, "of inputs that are images of bytes: what is taken from x / 255, per channel");
  f.optional("deviation", c.deviation, "what that is divided by, per channel");
  for (const double each : c.deviation) {
    f.require(each > 0, "deviation", fmt::format("expected numbers above 0, found {}", each));
  }
}

std::unique_ptr<Dataset> open_arrays(const ArraysDataConfig& config, const InputPlace& data) {
  const c10::InferenceMode normal(false);  // means outlive the caller's mode
  return std::make_unique<ArraysDataset>(config, data);
}

}  // namespace stagecraft
