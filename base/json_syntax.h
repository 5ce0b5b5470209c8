#pragma once

// Why a text is no JSON, for the person who wrote it.

#include <string>
#include <string_view>

namespace stagecraft::json {

/// The first place at which `text` is no JSON document: line and column (in characters), what stands there, what was
/// expected, and what to write where the slip is a common one. // and /* */ comments are allowed, a byte order mark
/// as well.
///   line 4, column 1: found "}" behind a comma; expected a key in double quotes: is the comma one too many?
/// Empty: it is one. Takes time and memory in proportion to the text.
[[nodiscard]] std::string syntax_error(std::string_view text);

}  // namespace stagecraft::json
