#pragma once

// Token files of any size as samples for language models (token_file.h says which files).

#include "models/data/dataset.h"

#include <array>
#include <optional>
#include <string>

namespace stagecraft {

/// What a sample is. packed: the file's tokens as one stream, `sequence` after `sequence`, whatever documents
/// they are of. separated: the same rows, with what keeps their documents apart. padded: one document, cut off or
/// filled up to `sequence` tokens.
enum class Documents : std::uint8_t { packed, separated, padded };
template <>
inline constexpr std::array enum_names<Documents>{"packed", "separated", "padded"};

struct TokensDataConfig {
  std::string path;
  std::string validation_path{};  ///< empty: `validation` of the samples
  std::int64_t sequence = 1024;
  std::int64_t vocabulary = 0;
  int bits = 16;  ///< of a token of a file that does not say it
  Documents documents = Documents::packed;
  std::int64_t pad = 0;  ///< token behind a padded document
  /// separated: the token that ends a document, in a file that does not say where they begin.
  std::optional<std::int64_t> separator{};
  double validation = 0;  ///< share of the samples, from the end
};
void describe(Fields& f, TokensDataConfig& c);

/// packed: the targets are the next tokens, so n tokens make (n - 1) / sequence samples. The others have no targets, but
/// fields. padded: "labels", -100 behind a document, and "attention_mask", 0 there. separated: "position_ids", which
/// begin again with each document, and "labels", -100 where one begins, since the token before is another's.
[[nodiscard]] std::unique_ptr<Dataset> open_tokens(const TokensDataConfig& config, const InputPlace& data);

}  // namespace stagecraft
