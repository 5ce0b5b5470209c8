#include "models/data/tokens.h"

#include "base/files.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "models/data/data_file.h"
#include "models/data/token_file.h"
#include "schedules/program/segments.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

constexpr std::int64_t kIgnored = -100;  // as PyTorch's cross entropy has it

class TokensDataset final : public Dataset {
 public:
  TokensDataset(TokensDataConfig config, const InputPlace& data)
      : config_(std::move(config)),
        place_(json::detail::child(data, "path")),
        validation_place_(json::detail::child(data, "validation_path")),
        train_(config_.path, {config_.bits, config_.vocabulary}, place_) {
    if (!config_.validation_path.empty()) {
      validation_.emplace(config_.validation_path, TokenFile::Plain{config_.bits, config_.vocabulary},
                          validation_place_);
    }
    const std::int64_t all = samples_in(train_);
    const auto held_back =
        validation_ ? 0 : static_cast<std::int64_t>(static_cast<double>(all) * config_.validation);
    samples_ = {all - held_back, validation_ ? samples_in(*validation_) : held_back};
    if (samples_[0] < 1) {
      throw data_file_error(place_, train_.path(),
                            fmt::format("has {} tokens, a sample takes {}", train_.count(),
                                        config_.sequence + (config_.documents == Documents::packed ? 1 : 0)));
    }
    Fingerprint fingerprint;
    fingerprint.add(fmt::format("{} {} {} {} {}", train_.fingerprint(), config_.sequence,
                                enum_name(config_.documents), config_.separator.value_or(config_.pad),
                                samples_[0]));
    if (validation_) fingerprint.add(validation_->fingerprint());
    fingerprint_ = fingerprint.text();
  }

  [[nodiscard]] std::int64_t size(Split split) const override {
    return samples_[split == Split::train ? 0 : 1];
  }
  [[nodiscard]] SampleSpec sample() const override {
    SampleSpec sample{{config_.sequence}, at::kLong, config_.vocabulary, Targets::tokens};
    if (config_.documents == Documents::packed) return sample;
    sample.targets = Targets::none;
    sample.fields = {{"labels", {config_.sequence}}};
    if (padded()) {
      sample.fields.push_back({"attention_mask", {config_.sequence}});
    } else {
      sample.fields.push_back({"position_ids", {config_.sequence}, at::kLong, /*needed=*/true});
    }
    return sample;
  }
  [[nodiscard]] at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    return rows(indices, [&](std::int64_t index, std::int64_t* row) {
      if (padded()) return fill(split, index, row, config_.pad);
      read(split, index * config_.sequence, config_.sequence, row);
    });
  }
  [[nodiscard]] at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    return rows(indices, [&](std::int64_t index, std::int64_t* row) {
      read(split, index * config_.sequence + 1, config_.sequence, row);
    });
  }
  [[nodiscard]] at::Tensor field(Split split, const std::string& name,
                                 const std::vector<std::int64_t>& indices) const override {
    return rows(indices, [&](std::int64_t index, std::int64_t* row) {
      if (!padded()) return name == "labels" ? labels(split, index, row) : positions(split, index, row);
      if (name == "labels") return fill(split, index, row, kIgnored);
      const std::int64_t tokens = document(split, index).second;
      std::fill(row, row + tokens, 1);
      std::fill(row + tokens, row + config_.sequence, 0);
    });
  }
  [[nodiscard]] std::vector<std::int64_t> lengths(Split split) const override {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; padded() && i < size(split); ++i)
      all.push_back(std::max<std::int64_t>(1, document(split, i).second));
    return all;
  }
  [[nodiscard]] bool reads_quickly() const override { return true; }
  [[nodiscard]] SampleOrigin origin(Split split, const std::string&, std::int64_t index) const override {
    const bool second = split == Split::validation && validation_;
    return {second ? validation_place_ : place_, of(split).path(), number(split, index)};
  }
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::string summary() const override {
    return fmt::format("{} ({}): {} tokens; {} training and {} validation samples of {}", train_.path(),
                       train_.kind(), train_.count(), samples_[0], samples_[1], config_.sequence);
  }

 private:
  [[nodiscard]] bool padded() const { return config_.documents == Documents::padded; }

  [[nodiscard]] std::int64_t samples_in(const TokenFile& file) const {
    if (config_.documents == Documents::packed)
      return std::max<std::int64_t>(file.count() - 1, 0) / config_.sequence;
    if (file.documents() == 0 && !config_.separator) {
      throw data_file_error(
          place_, file.path(),
          fmt::format("does not say where documents begin, as Megatron's files with an .idx "
                      "beside them do; use {}\"documents\": \"packed\"",
                      padded() ? "" : "\"separator\", the token that ends one, or "));
    }
    if (file.documents() != 0 && config_.separator) {
      throw data_file_error(place_, file.path(),
                            "says by its .idx where documents begin; leave \"separator\" out");
    }
    return padded() ? file.documents() : file.count() / config_.sequence;
  }

  [[nodiscard]] const TokenFile& of(Split split) const {
    return split == Split::validation && validation_ ? *validation_ : train_;
  }
  /// Of the file: validation from the same one begins behind the training samples.
  [[nodiscard]] std::int64_t number(Split split, std::int64_t index) const {
    return index + (split == Split::validation && !validation_ ? samples_[0] : 0);
  }

  template <class Fill>
  [[nodiscard]] at::Tensor rows(const std::vector<std::int64_t>& indices, const Fill& fill_row) const {
    at::Tensor tensor = at::empty({static_cast<std::int64_t>(indices.size()), config_.sequence}, at::kLong);
    auto* row = tensor.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      fill_row(index, row);
      row += config_.sequence;
    }
    return tensor;
  }

  /// Checked: an embedding reads where its tokens say.
  void read_tokens(Split split, std::int64_t first, std::int64_t count, std::int64_t* tokens) const {
    const TokenFile& file = of(split);
    file.read(first, count, tokens);
    const auto* const outside = std::find_if(
        tokens, tokens + count, [&](std::int64_t token) { return token < 0 || token >= config_.vocabulary; });
    if (outside == tokens + count) return;
    throw data_file_error(split == Split::validation && validation_ ? validation_place_ : place_, file.path(),
                          fmt::format("token {} is {}, outside of the vocabulary of {}",
                                      first + (outside - tokens), *outside, config_.vocabulary));
  }

  void read(Split split, std::int64_t first, std::int64_t count, std::int64_t* tokens) const {
    read_tokens(split, number(split, 0) * config_.sequence + first, count, tokens);
  }

  /// Its first token, and how many a sample has of it.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> document(Split split, std::int64_t index) const {
    const auto [first, tokens] = of(split).document(number(split, index));
    return {first, std::min(tokens, config_.sequence)};
  }

  /// Of each token of a row whether a document begins with it; the row itself begins with none.
  [[nodiscard]] std::vector<bool> begins(Split split, std::int64_t index) const {
    std::vector<bool> begins(static_cast<std::size_t>(config_.sequence));
    if (config_.separator) {
      std::vector<std::int64_t> tokens(begins.size());
      read(split, index * config_.sequence, config_.sequence, tokens.data());
      for (std::size_t i = 1; i < begins.size(); ++i) begins[i] = tokens[i - 1] == *config_.separator;
      return begins;
    }
    const TokenFile& file = of(split);
    const std::int64_t first = number(split, index) * config_.sequence;
    // The first document that begins behind the row's first token.
    std::int64_t document = 0;
    for (std::int64_t end = file.documents(); document < end;) {
      const std::int64_t middle = document + (end - document) / 2;
      if (file.document(middle).first > first) {
        end = middle;
      } else {
        document = middle + 1;
      }
    }
    for (; document < file.documents(); ++document) {
      const std::int64_t at = file.document(document).first - first;
      if (at >= config_.sequence) break;
      begins[static_cast<std::size_t>(at)] = true;
    }
    return begins;
  }

  void labels(Split split, std::int64_t index, std::int64_t* row) const {
    const std::vector<bool> at = begins(split, index);
    read(split, index * config_.sequence, config_.sequence, row);
    for (std::size_t i = 0; i < at.size(); ++i)
      if (at[i]) row[i] = kIgnored;
  }

  void positions(Split split, std::int64_t index, std::int64_t* row) const {
    const std::vector<bool> at = begins(split, index);
    std::int64_t position = 0;
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (at[i]) position = 0;
      row[i] = position++;
    }
  }

  void fill(Split split, std::int64_t index, std::int64_t* row, std::int64_t behind) const {
    const auto [first, tokens] = document(split, index);
    read_tokens(split, first, tokens, row);
    std::fill(row + tokens, row + config_.sequence, behind);
  }

  TokensDataConfig config_;
  InputPlace place_, validation_place_;
  TokenFile train_;
  std::optional<TokenFile> validation_;
  std::array<std::int64_t, 2> samples_{};
  std::string fingerprint_;
};

}  // namespace

void describe(Fields& f, TokensDataConfig& c) {
  f.required("path", c.path, "file of tokens: plain, llm.c's, or Megatron's with its .idx beside it",
             json::non_empty());
  f.optional("validation_path", c.validation_path, "the same of validation");
  f.optional("sequence", c.sequence, "tokens of a sample",
             json::between(1, static_cast<double>(kMostRunSamples)));
  f.required("vocabulary", c.vocabulary, "number of different tokens", json::between(1, 4294967296.0));
  f.optional("bits", c.bits, "of a token, 16 or 32, where the file does not say it");
  f.require(c.bits == 16 || c.bits == 32, "bits", fmt::format("expected 16 or 32, found {}", c.bits));
  f.optional(
      "documents", c.documents,
      "packed: one stream, sample after sample; separated: the same, with position_ids that begin again "
      "with each document; padded: a document per sample, for files of Megatron");
  f.optional("pad", c.pad, "token behind a padded document", json::at_least(0));
  f.require(c.pad < c.vocabulary, "pad",
            fmt::format("expected a token of the vocabulary of {}, found {}", c.vocabulary, c.pad));
  f.optional(
      "separator", c.separator,
      "with documents separated: the token that ends one, where the file does not say where they begin",
      json::at_least(0));
  f.require(!c.separator || *c.separator < c.vocabulary, "separator",
            fmt::format("expected a token of the vocabulary of {}, found {}", c.vocabulary,
                        c.separator.value_or(0)));
  f.require(!c.separator || c.documents == Documents::separated, "separator",
            "is for \"documents\": \"separated\"");
  f.optional("validation", c.validation, "share of the samples, from the end; without validation_path",
             json::from_up_to(0, 1));
  f.require(c.validation == 0 || c.validation_path.empty(), "validation",
            "validation_path says what validation reads");
}

std::unique_ptr<Dataset> open_tokens(const TokensDataConfig& config, const InputPlace& data) {
  return std::make_unique<TokensDataset>(config, data);
}

}  // namespace stagecraft
