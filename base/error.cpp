#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace stagecraft {
namespace {

std::string place_prefix(const InputPlace& place) {
  std::string prefix;
  if (!place.file.empty()) prefix += place.file + ": ";
  if (!place.pointer.empty()) prefix += place.pointer + ": ";
  return prefix;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0U);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

InputError::InputError(const InputPlace& place, std::string_view what)
    : std::runtime_error(place_prefix(place) + std::string(what)) {}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongest =
      200;  // whose typing can slip; the distance takes the product of two lengths
  std::string best;
  if (word.size() > kLongest) return best;
  // Beyond a third of the word it is no longer a slip of the finger.
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > 2 * kLongest) continue;
    std::size_t distance = edit_distance(word, candidate);
    // A word that begins like the candidate is likely an abbreviation of it.
    if (word.size() >= 3 && candidate.starts_with(word)) distance = std::min<std::size_t>(distance, 1);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string found = nearest(word, candidates);
  return found.empty() ? "" : fmt::format("; did you mean \"{}\"?", found);
}

void detail::check_failed(const char* condition, const char* file, int line, const std::string& what) {
  throw InternalError(
      fmt::format("{} (`{}` failed at {}:{}); this is a defect in Stagecraft", what, condition, file, line));
}

}  // namespace stagecraft
