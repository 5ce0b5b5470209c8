#pragma once

// The name that was meant, for messages about one that is unknown.

#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {

/// The candidate that `word` most likely means, or "" where none is close enough. In this order: the same letters in
/// other case or with other separators ("adamw": AdamW), the field's other name for one ("gpu": cuda, "gpipe":
/// fill_drain), a slip of one letter, a candidate that contains the word or begins with it, the least edit distance.
[[nodiscard]] std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// `; did you mean "AdamW"?` or "".
[[nodiscard]] std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// Lower case, without '-', '_', '.', ':' and blanks: what people remember of a name.
[[nodiscard]] std::string remembered(std::string_view name);

}  // namespace stagecraft
