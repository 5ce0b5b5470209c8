#include "models/data/idx.h"

#include "base/files.h"
#include "base/fingerprint.h"
#include "models/data/data_file.h"
#include "models/data/known_format.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace stagecraft {

namespace {

constexpr double kMean = 0.2860;
constexpr double kDeviation = 0.3530;
constexpr std::uint32_t kMaxSide = 4096;  // keeps images * rows * columns far below 2^63

struct IdxFile {
  std::string path;
  std::vector<std::int64_t> sizes;
  std::string bytes;  ///< header included: copying 47 MB to drop 16 bytes would double the peak
  std::size_t header = 0;

  [[nodiscard]] const std::uint8_t* data() const {
    return reinterpret_cast<const std::uint8_t*>(bytes.data() + header);
  }
};

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = at; i < at + 4; ++i) value = (value << 8U) | static_cast<std::uint8_t>(bytes[i]);
  return value;
}

/// `stem`-idx3-ubyte, as MNIST's are named, or `stem`.idx3-ubyte, as copies of them are.
std::string find_idx(const std::string& stem, std::uint32_t dimensions, const InputPlace& place) {
  const std::string ending = fmt::format("idx{}-ubyte", dimensions);
  const std::string other = stem + "." + ending;
  if (!is_there(stem + "-" + ending) && !is_there(stem + "-" + ending + ".gz") &&
      (is_there(other) || is_there(other + ".gz"))) {
    return find_data_file(other, "", place);
  }
  return find_data_file(stem + "-" + ending, "scripts/fetch_data.sh --fashion data", place);
}

IdxFile read_idx(const std::string& stem, std::uint32_t dimensions, const InputPlace& place) {
  IdxFile file;
  file.path = find_idx(stem, dimensions, place);
  DataFile in(file.path, place);
  file.header = 4 + 4 * std::size_t{dimensions};
  in.read_onto(file.bytes, file.header);
  const auto wrong = [&](const std::string& what) { return data_file_error(place, file.path, what); };
  if (file.bytes.size() < file.header)
    throw wrong(
        fmt::format("truncated: {} bytes, its header alone takes {}", file.bytes.size(), file.header));
  const std::uint32_t magic = big_endian(file.bytes, 0);
  if (magic != 0x0800 + dimensions) {
    const std::string other = known_format(beginning_of(file.path));
    throw wrong(fmt::format("not an IDX file of {}: magic 0x{:08x}, expected 0x{:08x}{}",
                            dimensions == 1 ? "labels" : "images", magic, 0x0800 + dimensions,
                            other.empty() ? "" : "; it is " + other));
  }
  std::int64_t total = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::uint32_t size = big_endian(file.bytes, 4 + 4 * d);
    if (size == 0 || (d > 0 && size > kMaxSide))
      throw wrong(fmt::format("impossible size {} in dimension {}", size, d));
    file.sizes.push_back(size);
    total *= size;
  }
  if (const DataLimit most = share_of_memory(); static_cast<std::uint64_t>(total) > most.bytes)
    throw wrong(fmt::format("its header promises {} bytes ({}), more than {}", total,
                            fmt::join(file.sizes, " x "), most.words));
  // One byte more than promised, whatever else a compressed file may hold.
  in.read_onto(file.bytes, static_cast<std::uint64_t>(total) + 1);
  const auto found = static_cast<std::int64_t>(file.bytes.size() - file.header);
  if (found < total)
    throw wrong(fmt::format("truncated: {} bytes of data, its header promises {} ({})", found, total,
                            fmt::join(file.sizes, " x ")));
  if (found > total)
    throw wrong(fmt::format("has more than the {} bytes its header promises ({})", total,
                            fmt::join(file.sizes, " x ")));
  return file;
}

struct LabelledImages {
  IdxFile images;
  IdxFile labels;
  std::int64_t classes = 0;

  [[nodiscard]] std::int64_t count() const { return images.sizes[0]; }
  [[nodiscard]] std::int64_t pixels() const { return images.sizes[1] * images.sizes[2]; }
};

LabelledImages read_pair(const std::string& folder, const std::string& prefix, const InputPlace& place) {
  const std::string stem = (std::filesystem::path(folder) / prefix).string();
  LabelledImages pair{read_idx(stem + "-images", 3, place), read_idx(stem + "-labels", 1, place)};
  if (pair.labels.sizes[0] != pair.count())
    throw data_file_error(
        place, pair.labels.path,
        fmt::format("{} labels, but {} has {} images", pair.labels.sizes[0], pair.images.path, pair.count()));
  pair.classes = 1 + *std::max_element(pair.labels.data(), pair.labels.data() + pair.count());
  return pair;
}

class IdxDataset final : public Dataset {
 public:
  IdxDataset(const IdxDataConfig& config, const InputPlace& place)
      : path_(config.path),
        place_(place),
        train_(read_pair(config.path, "train", place)),
        validation_(read_pair(config.path, "t10k", place)) {
    if (train_.images.sizes[1] != validation_.images.sizes[1] ||
        train_.images.sizes[2] != validation_.images.sizes[2])
      throw data_file_error(place, validation_.images.path,
                            fmt::format("images of {} x {}, but those of {} are {} x {}",
                                        validation_.images.sizes[1], validation_.images.sizes[2],
                                        train_.images.path, train_.images.sizes[1], train_.images.sizes[2]));
    if (validation_.classes > train_.classes)
      throw data_file_error(place, validation_.labels.path,
                            fmt::format("has label {}, the largest of {} is {}", validation_.classes - 1,
                                        train_.labels.path, train_.classes - 1));
    Fingerprint print;
    for (const LabelledImages* pair : {&train_, &validation_})
      print.add(pair->images.bytes).add(pair->labels.bytes);
    fingerprint_ = print.text();
    for (std::size_t byte = 0; byte < normalized_.size(); ++byte)
      normalized_[byte] = static_cast<float>((static_cast<double>(byte) / 255 - kMean) / kDeviation);
  }

  [[nodiscard]] std::int64_t size(Split split) const override { return of(split).count(); }

  [[nodiscard]] SampleSpec sample() const override {
    return {{1, train_.images.sizes[1], train_.images.sizes[2]}, at::kFloat, train_.classes};
  }

  [[nodiscard]] at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    const LabelledImages& pair = of(split);
    at::Tensor batch =
        at::empty({static_cast<std::int64_t>(indices.size()), 1, pair.images.sizes[1], pair.images.sizes[2]},
                  at::kFloat);
    float* out = batch.mutable_data_ptr<float>();
    for (const std::int64_t index : indices) {
      const std::uint8_t* image = pair.images.data() + index * pair.pixels();
      out = std::transform(image, image + pair.pixels(), out,
                           [this](std::uint8_t byte) { return normalized_[byte]; });
    }
    return batch;
  }

  [[nodiscard]] at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    const LabelledImages& pair = of(split);
    at::Tensor batch = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
    std::transform(indices.begin(), indices.end(), batch.mutable_data_ptr<std::int64_t>(),
                   [&](std::int64_t index) { return pair.labels.data()[index]; });
    return batch;
  }

  [[nodiscard]] bool reads_quickly() const override { return true; }
  [[nodiscard]] SampleOrigin origin(Split split, const std::string& field,
                                    std::int64_t index) const override {
    const LabelledImages& pair = of(split);
    return {place_, field == "targets" ? pair.labels.path : pair.images.path, index};
  }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }

  [[nodiscard]] std::string summary() const override {
    return fmt::format("{}: {} training and {} validation images of {} x {}, {} classes", path_,
                       train_.count(), validation_.count(), train_.images.sizes[1], train_.images.sizes[2],
                       train_.classes);
  }

 private:
  [[nodiscard]] const LabelledImages& of(Split split) const {
    return split == Split::train ? train_ : validation_;
  }

  std::string path_;
  InputPlace place_;
  LabelledImages train_;
  LabelledImages validation_;
  std::string fingerprint_;
  std::array<float, 256> normalized_{};  ///< value of each byte
};

}  // namespace

void describe(Fields& f, IdxDataConfig& c) {
  f.optional("path", c.path, "folder with train-images-idx3-ubyte[.gz] and its three companions",
             json::non_empty());
}

std::unique_ptr<Dataset> open_idx(const IdxDataConfig& config, const InputPlace& place) {
  return std::make_unique<IdxDataset>(config, place);
}

}  // namespace stagecraft
