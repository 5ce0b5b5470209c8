#pragma once

// How wide the tokens of a plain file are, which nothing in it says: what can be seen of that.

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

/// Parts of a file of tokens, each from a multiple of 8 bytes on and a multiple of 8 bytes long.
using TokenPieces = std::vector<std::string>;

/// What speaks against tokens of `bits` (16 or 32) bits below `vocabulary`, and what to do: "its tokens look
/// like ones of 32 bits: ...". Empty: nothing.
///
/// Tokens that are wider show zeros in every second place. Where at least 16 words are no zero, all of them lie
/// at even places and the odd ones are all 0 (or below 4, while those at even places are large), narrower tokens
/// would do so by chance once in 2^16.
[[nodiscard]] std::string misread_width(const TokenPieces& pieces, int bits, std::int64_t vocabulary);

}  // namespace stagecraft
