#include "models/data/token_width.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

namespace stagecraft {
namespace {

template <class Word, class Visit>
void visit_words(const TokenPieces& pieces, const Visit& visit) {
  for (const std::string& piece : pieces) {
    for (std::size_t i = 0; i < piece.size() / sizeof(Word); ++i) {
      Word word = 0;
      std::memcpy(&word, piece.data() + i * sizeof(Word), sizeof word);
      visit(i, static_cast<std::uint64_t>(word));
    }
  }
}

/// Whether words at odd places are at most `tiny`, and enough of those at even places above `large`.
template <class Word>
bool only_even(const TokenPieces& pieces, std::uint64_t tiny, std::uint64_t large) {
  constexpr std::int64_t kEnough = 16;
  std::int64_t found = 0;
  bool odd = false;
  visit_words<Word>(pieces, [&](std::size_t i, std::uint64_t word) {
    if (i % 2 == 0) {
      found += word > large ? 1 : 0;
    } else {
      odd = odd || word > tiny;
    }
  });
  return !odd && found >= kEnough;
}

template <class Word>
bool is_twice_as_wide(const TokenPieces& pieces) {
  return only_even<Word>(pieces, 0, 0) || only_even<Word>(pieces, 3, 4096);
}

template <class Word>
bool all_below(const TokenPieces& pieces, std::uint64_t vocabulary) {
  bool all = true;
  visit_words<Word>(pieces, [&](std::size_t, std::uint64_t word) { all = all && word < vocabulary; });
  return all;
}

/// Widths in which all tokens are of the vocabulary.
std::vector<int> fitting_widths(const TokenPieces& pieces, std::uint64_t vocabulary) {
  std::vector<int> widths;
  if (all_below<std::uint8_t>(pieces, vocabulary) && vocabulary <= 256) widths.push_back(8);
  if (all_below<std::uint16_t>(pieces, vocabulary)) widths.push_back(16);
  if (all_below<std::uint32_t>(pieces, vocabulary)) widths.push_back(32);
  if (all_below<std::uint64_t>(pieces, vocabulary)) widths.push_back(64);
  return widths;
}

std::string remedy(int found) {
  if (found == 16 || found == 32) return fmt::format("write \"bits\": {}", found);
  return fmt::format(
      "write them with 16 or 32, as numpy.fromfile(FILE, \"{}\").astype(\"uint32\").tofile(NEW) does",
      found == 8 ? "uint8" : "int64");
}

}  // namespace

std::string misread_width(const TokenPieces& pieces, int bits, std::int64_t vocabulary) {
  const bool twice = is_twice_as_wide<std::uint16_t>(pieces);
  const bool four_times = is_twice_as_wide<std::uint32_t>(pieces);
  if (four_times || (twice && bits == 16)) {
    const int found = four_times ? 64 : 32;
    return fmt::format("its tokens look like ones of {} bits: of {} bits every second one would be {}; {}",
                       found, bits, four_times ? "0" : "next to 0", remedy(found));
  }
  const auto most = static_cast<std::uint64_t>(vocabulary);
  const bool fits =
      bits == 16 ? all_below<std::uint16_t>(pieces, most) : all_below<std::uint32_t>(pieces, most);
  if (fits) return "";
  std::vector<int> widths = fitting_widths(pieces, most);
  // Bytes are below 256 whatever they are of.
  if (most >= 256) std::erase(widths, 8);
  if (widths.empty()) return "";  // the first such token is named where it is read
  return fmt::format(
      "as tokens of {} bits some are outside of the vocabulary of {}, as tokens of {} bits none; {}", bits,
      vocabulary, fmt::join(widths, " or "), remedy(widths.front()));
}

}  // namespace stagecraft
