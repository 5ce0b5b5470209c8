#pragma once

// Names of a loss's terms (Loss::terms). They become keys of metrics.jsonl and parts of names in tools that follow
// runs.

#include <cstddef>
#include <string>
#include <vector>

namespace stagecraft {

inline constexpr std::size_t kMostTerms = 32;

/// Why no loss has these terms, for people; empty: one may. A name has 1 to 40 letters, digits, _ . / or -, begins with
/// a letter, a digit or _, stands there once, and is not "loss".
[[nodiscard]] std::string term_names_refusal(const std::vector<std::string>& names);

}  // namespace stagecraft
