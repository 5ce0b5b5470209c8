#pragma once

// Text as tokens: bytes (vocabulary 256) or the characters (UTF-8 code points) that occur, in code point
// order.

#include "models/data/dataset.h"

namespace stagecraft {

/// One text file, cut into windows of `sequence` tokens that predict the next one.
struct TextDataConfig {
  std::string path = "data/shakespeare.txt";
  std::string tokens = "bytes";
  std::int64_t sequence = 128;
  double validation = 0.1;
};
void describe(Fields& f, TextDataConfig& c);

/// The last `validation` share of the tokens is for validation, the rest for training. Each part is cut into
/// windows of `sequence` tokens that do not overlap; the target of a token is the next one, so n tokens make
/// (n - 1) / sequence samples and what is left over at the end of a part is not used.
[[nodiscard]] std::unique_ptr<Dataset> open_text(const TextDataConfig& config, const InputPlace& place);

}  // namespace stagecraft
