#pragma once

// Text as tokens: bytes (vocabulary 256) or the characters (UTF-8 code points) that occur, in code point
// order.

#include "stagecraft/models/data/dataset.h"

namespace stagecraft {

/// The last `validation` share of the tokens is for validation, the rest for training. Each part is cut into
/// windows of `sequence` tokens that do not overlap; the target of a token is the next one, so n tokens make
/// (n - 1) / sequence samples and what is left over at the end of a part is not used.
[[nodiscard]] std::unique_ptr<Dataset> open_text(const TextDataConfig& config, const InputPlace& place);

}  // namespace stagecraft
