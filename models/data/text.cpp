#include "models/data/text.h"

#include "models/data/data_file.h"
#include "schedules/base/files.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace stagecraft {

namespace {

/// Code points of UTF-8 text; refuses what is not (overlong forms and surrogates included).
std::vector<std::int32_t> code_points(const std::string& bytes, const std::string& path,
                                      const InputPlace& place) {
  constexpr std::array<std::int32_t, 4> kSmallest{0, 0x80, 0x800, 0x10000};
  std::vector<std::int32_t> points;
  points.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<std::uint8_t>(bytes[i]);
    const std::size_t more = lead < 0x80 ? 0 : lead < 0xC0 ? 4 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    bool valid = lead < 0xF8 && more < 4 && i + more < bytes.size();
    std::int32_t point = more == 0 ? lead : lead & (0x3F >> more);
    for (std::size_t k = 1; valid && k <= more; ++k) {
      const auto next = static_cast<std::uint8_t>(bytes[i + k]);
      valid = (next & 0xC0) == 0x80;
      point = (point << 6) | (next & 0x3F);
    }
    if (!valid || point < kSmallest[more] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
      throw data_file_error(
          place, path,
          fmt::format("not UTF-8 at byte {}; with \"tokens\": \"bytes\" any file can be read", i));
    points.push_back(point);
    i += more + 1;
  }
  return points;
}

/// Replaces each code point by its rank among those that occur; returns how many there are.
std::int64_t rank_characters(std::vector<std::int32_t>& points) {
  if (points.empty()) return 0;
  std::vector<std::int32_t> rank(
      1 + static_cast<std::size_t>(*std::max_element(points.begin(), points.end())), -1);
  for (const std::int32_t point : points) rank[static_cast<std::size_t>(point)] = 0;
  std::int32_t count = 0;
  for (std::int32_t& r : rank)
    if (r == 0) r = count++;
  for (std::int32_t& point : points) point = rank[static_cast<std::size_t>(point)];
  return count;
}

class TextDataset final : public Dataset {
 public:
  TextDataset(const TextDataConfig& config, const InputPlace& place) : config_(config) {
    const std::string path = find_data_file(config.path, "scripts/fetch_data.sh --text data", place);
    const std::string bytes = read_data_file(path, place);
    fingerprint_ = Fingerprint()
                       .add(bytes)
                       .add(fmt::format("{} {} {}", config.tokens, config.sequence, config.validation))
                       .text();
    if (config.tokens == "bytes") {
      tokens_.resize(bytes.size());
      std::transform(bytes.begin(), bytes.end(), tokens_.begin(),
                     [](char c) { return static_cast<std::uint8_t>(c); });
      vocabulary_ = 256;
    } else {
      tokens_ = code_points(bytes, path, place);
      vocabulary_ = rank_characters(tokens_);
    }
    const auto total = static_cast<std::int64_t>(tokens_.size());
    const auto held_back = static_cast<std::int64_t>(static_cast<double>(total) * config.validation);
    training_tokens_ = total - held_back;
    samples_ = {windows(training_tokens_), windows(held_back)};
    const auto too_short = [&](const char* part, std::int64_t count) {
      return data_file_error(
          place, path,
          fmt::format("too short: {} of {} {} are for {}, one sample takes {} (sequence + 1)", count, total,
                      config.tokens, part, config.sequence + 1));
    };
    if (samples_[0] == 0) throw too_short("training", training_tokens_);
    if (samples_[1] == 0 && config.validation > 0) throw too_short("validation", held_back);
  }

  [[nodiscard]] std::int64_t size(Split split) const override {
    return samples_[split == Split::train ? 0 : 1];
  }
  [[nodiscard]] SampleSpec sample() const override {
    return {{config_.sequence}, at::kLong, vocabulary_, Targets::tokens};
  }
  [[nodiscard]] at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    return batch(split, indices, 0);
  }
  [[nodiscard]] at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    return batch(split, indices, 1);
  }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::string summary() const override {
    return fmt::format("{}: {} {}, vocabulary {}; {} training and {} validation windows of {}", config_.path,
                       tokens_.size(), config_.tokens, vocabulary_, samples_[0], samples_[1],
                       config_.sequence);
  }

 private:
  [[nodiscard]] std::int64_t windows(std::int64_t tokens) const {
    return std::max<std::int64_t>(tokens - 1, 0) / config_.sequence;
  }

  [[nodiscard]] at::Tensor batch(Split split, const std::vector<std::int64_t>& indices,
                                 std::int64_t ahead) const {
    at::Tensor result = at::empty({static_cast<std::int64_t>(indices.size()), config_.sequence}, at::kLong);
    auto* out = result.mutable_data_ptr<std::int64_t>();
    const std::int64_t base = (split == Split::train ? 0 : training_tokens_) + ahead;
    for (const std::int64_t index : indices)
      out = std::copy_n(tokens_.begin() + base + index * config_.sequence, config_.sequence, out);
    return result;
  }

  TextDataConfig config_;
  std::vector<std::int32_t> tokens_;
  std::int64_t vocabulary_ = 0;
  std::int64_t training_tokens_ = 0;
  std::array<std::int64_t, 2> samples_{};
  std::string fingerprint_;
};

}  // namespace

std::unique_ptr<Dataset> open_text(const TextDataConfig& config, const InputPlace& place) {
  return std::make_unique<TextDataset>(config, place);
}

}  // namespace stagecraft
