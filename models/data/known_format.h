#pragma once

// Files that are something else than what a data set reads, told by how they begin. A reader of bytes without a
// format of their own (plain tokens, text) would train on them without a word.

#include <string>
#include <string_view>

namespace stagecraft {

/// Bytes of a file's beginning that known_format looks at, where there are so many.
inline constexpr std::size_t kFormatBytes = 512;

/// What a file that begins so is, and how to read it: "a .npy array (numpy.save)". Empty: nothing that is known
/// here.
[[nodiscard]] std::string known_format(std::string_view beginning);

/// Whether these bytes are readable characters and ends of lines, nothing else. Not of fewer than 64.
[[nodiscard]] bool is_plain_text(std::string_view bytes);

}  // namespace stagecraft
