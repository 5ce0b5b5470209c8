#include "models/data/text.h"

#include "base/files.h"
#include "base/fingerprint.h"
#include "models/data/data_file.h"
#include "models/data/known_format.h"
#include "schedules/program/segments.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace stagecraft {

namespace {

/// The code points of UTF-8 text, one after the other; refuses what is not (overlong forms and surrogates
/// included).
class CodePoints {
 public:
  CodePoints(const std::string& bytes, const std::string& path, const InputPlace& place)
      : bytes_(bytes), path_(path), place_(place) {}

  [[nodiscard]] bool more() const { return at_ < bytes_.size(); }
  std::int32_t next() {
    constexpr std::array<std::int32_t, 4> kSmallest{0, 0x80, 0x800, 0x10000};
    const auto lead = static_cast<std::uint8_t>(bytes_[at_]);
    const std::size_t more = lead < 0x80 ? 0 : lead < 0xC0 ? 4 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    bool valid = lead < 0xF8 && more < 4 && at_ + more < bytes_.size();
    std::int32_t point = more == 0 ? lead : lead & (0x3F >> more);
    for (std::size_t k = 1; valid && k <= more; ++k) {
      const auto next = static_cast<std::uint8_t>(bytes_[at_ + k]);
      valid = (next & 0xC0) == 0x80;
      point = (point << 6) | (next & 0x3F);
    }
    if (!valid || point < kSmallest[more] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
      throw data_file_error(
          place_, path_,
          fmt::format("not UTF-8 at byte {}; with \"tokens\": \"bytes\" any file can be read", at_));
    at_ += more + 1;
    return point;
  }

 private:
  const std::string& bytes_;
  const std::string& path_;
  const InputPlace& place_;
  std::size_t at_ = 0;
};

/// Text in UTF-16 or UTF-32 without its mark: nearly every other byte is 0, as in no text of UTF-8 and in few files
/// that are read as bytes. Empty: it is none; else the name of the encoding.
std::string wide_text(std::string_view bytes) {
  constexpr std::size_t kLooked = 4096;
  const std::string_view first = bytes.substr(0, std::min(bytes.size(), kLooked) / 4 * 4);
  if (first.size() < 16) return "";
  std::array<std::size_t, 4> zeros{};
  for (std::size_t i = 0; i < first.size(); ++i) zeros[i % 4] += first[i] == '\0' ? 1 : 0;
  const std::size_t each = first.size() / 4;
  const auto none = [&](std::size_t at) { return zeros[at] * 10 < each; };
  const auto most = [&](std::size_t at) { return zeros[at] * 10 > each * 8; };
  if (none(0) && most(1) && most(2) && most(3)) return "UTF-32LE";
  if (most(0) && most(1) && most(2) && none(3)) return "UTF-32BE";
  if (none(0) && most(1) && none(2) && most(3)) return "UTF-16LE";
  if (most(0) && none(1) && most(2) && none(3)) return "UTF-16BE";
  return "";
}

/// A text's bytes without the mark of UTF-8 at their beginning. Refuses UTF-16 and what is no text, of which bytes
/// would be tokens as well.
std::string text_of(const std::string& path, const InputPlace& place, const std::string& tokens) {
  // Characters of large vocabularies take two bytes or more each, beside the text.
  constexpr int kBytesShare = 2, kCharactersShare = 4;
  std::string bytes =
      read_data_file(path, place, share_of_memory(tokens == "bytes" ? kBytesShare : kCharactersShare));
  if (bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff")) {
    throw data_file_error(place, path, "is text in UTF-16; iconv -f UTF-16 -t UTF-8 makes UTF-8 of it");
  }
  if (const std::string wide = wide_text(bytes); !wide.empty()) {
    throw data_file_error(
        place, path,
        fmt::format(
            "looks like text in {}: nearly every other byte is 0; iconv -f {} -t UTF-8 makes UTF-8 of it",
            wide, wide));
  }
  const std::string other = known_format(std::string_view(bytes).substr(0, kFormatBytes));
  if (!other.empty() && !other.starts_with("a web page")) {  // which is text
    throw data_file_error(place, path, fmt::format("is no text, it is {}", other));
  }
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  if (bytes.starts_with(kMark)) bytes.erase(0, kMark.size());
  return bytes;
}

/// The tokens of a text in the fewest bytes each that hold their vocabulary: a text of bytes as it was read.
using Tokens = std::variant<std::string, std::vector<std::uint16_t>, std::vector<std::int32_t>>;

template <class Token>
std::int64_t value_of(Token token) {
  return static_cast<std::int64_t>(static_cast<std::make_unsigned_t<Token>>(token));
}

/// Each character's rank among those that occur, in code point order.
class CharacterRanks {
 public:
  CharacterRanks(const std::string& bytes, const std::string& path, const InputPlace& place)
      : ranks_(0x110000, -1) {
    for (CodePoints points(bytes, path, place); points.more(); ++length_) {
      ranks_[static_cast<std::size_t>(points.next())] = 0;
    }
    for (std::int32_t& rank : ranks_)
      if (rank == 0) rank = vocabulary_++;
  }
  [[nodiscard]] std::int64_t vocabulary() const { return vocabulary_; }

  /// `bytes` are those that were ranked. A rank that fits a byte takes the place of its character.
  [[nodiscard]] Tokens tokens(std::string bytes, const std::string& path, const InputPlace& place) const {
    CodePoints points(bytes, path, place);
    if (vocabulary_ > 1 << 16) return wide<std::int32_t>(points);
    if (vocabulary_ > 1 << 8) return wide<std::uint16_t>(points);
    for (std::size_t i = 0; i < length_; ++i) {  // no character is shorter than a byte: reading is ahead
      const std::int32_t rank = next(points);
      bytes[i] = static_cast<char>(rank);
    }
    bytes.resize(length_);
    return bytes;
  }

 private:
  template <class Token>
  [[nodiscard]] std::vector<Token> wide(CodePoints& points) const {
    std::vector<Token> tokens(length_);
    for (Token& token : tokens) token = static_cast<Token>(next(points));
    return tokens;
  }
  [[nodiscard]] std::int32_t next(CodePoints& points) const {
    return ranks_[static_cast<std::size_t>(points.next())];
  }

  std::vector<std::int32_t> ranks_;  // by code point; -1: does not occur
  std::int32_t vocabulary_ = 0;
  std::size_t length_ = 0;  // characters
};

class TextDataset final : public Dataset {
 public:
  TextDataset(const TextDataConfig& config, const InputPlace& place) : config_(config), place_(place) {
    // The one that the default path names; of somebody's own the script knows nothing.
    const bool is_ours = config.path.ends_with("shakespeare.txt");
    const std::string path =
        find_data_file(config.path, is_ours ? "scripts/fetch_data.sh --text data" : "", place);
    std::string bytes = text_of(path, place, config.tokens);
    fingerprint_ = Fingerprint()
                       .add(bytes)
                       .add(fmt::format("{} {} {}", config.tokens, config.sequence, config.validation))
                       .text();
    if (config.tokens == "bytes") {
      tokens_ = std::move(bytes);
      vocabulary_ = 256;
    } else {
      const CharacterRanks ranks(bytes, path, place);
      vocabulary_ = ranks.vocabulary();
      tokens_ = ranks.tokens(std::move(bytes), path, place);
    }
    const std::int64_t total = count();
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
  [[nodiscard]] bool reads_quickly() const override { return true; }
  [[nodiscard]] SampleOrigin origin(Split split, const std::string&, std::int64_t index) const override {
    return {place_, config_.path, index + (split == Split::validation ? samples_[0] : 0)};
  }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::string summary() const override {
    return fmt::format("{}: {} {}, vocabulary {}; {} training and {} validation windows of {}", config_.path,
                       count(), config_.tokens, vocabulary_, samples_[0], samples_[1], config_.sequence);
  }

 private:
  [[nodiscard]] std::int64_t count() const {
    return std::visit([](const auto& tokens) { return static_cast<std::int64_t>(tokens.size()); }, tokens_);
  }
  [[nodiscard]] std::int64_t windows(std::int64_t tokens) const {
    return std::max<std::int64_t>(tokens - 1, 0) / config_.sequence;
  }

  [[nodiscard]] at::Tensor batch(Split split, const std::vector<std::int64_t>& indices,
                                 std::int64_t ahead) const {
    at::Tensor result = at::empty({static_cast<std::int64_t>(indices.size()), config_.sequence}, at::kLong);
    auto* out = result.mutable_data_ptr<std::int64_t>();
    const std::int64_t base = (split == Split::train ? 0 : training_tokens_) + ahead;
    std::visit(
        [&](const auto& tokens) {
          for (const std::int64_t index : indices) {
            const auto first = tokens.begin() + base + index * config_.sequence;
            out = std::transform(first, first + config_.sequence, out,
                                 [](auto token) { return value_of(token); });
          }
        },
        tokens_);
    return result;
  }

  TextDataConfig config_;
  InputPlace place_;
  Tokens tokens_;
  std::int64_t vocabulary_ = 0;
  std::int64_t training_tokens_ = 0;
  std::array<std::int64_t, 2> samples_{};
  std::string fingerprint_;
};

}  // namespace

void describe(Fields& f, TextDataConfig& c) {
  f.optional("path", c.path, "a text file", json::non_empty());
  f.optional("tokens", c.tokens, "bytes (vocabulary 256) or characters (those that occur)");
  f.require(c.tokens == "bytes" || c.tokens == "characters", "tokens",
            "expected \"bytes\" or \"characters\", found \"" + c.tokens + "\"");
  f.optional("sequence", c.sequence, "tokens of a sample",
             json::between(1, static_cast<double>(kMostRunSamples)));
  f.optional("validation", c.validation, "share of the text, taken from its end", json::from_up_to(0, 1));
}

std::unique_ptr<Dataset> open_text(const TextDataConfig& config, const InputPlace& place) {
  return std::make_unique<TextDataset>(config, place);
}

}  // namespace stagecraft
