#include "models/losses/term_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace stagecraft {
namespace {

constexpr std::size_t kLongestName = 40;
constexpr std::string_view kFirst = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";

bool is_name(std::string_view name) {
  const auto may_follow = [](char c) {
    return kFirst.find(c) != std::string_view::npos ||
           std::string_view("./-").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= kLongestName &&
         kFirst.find(name.front()) != std::string_view::npos &&
         std::all_of(name.begin(), name.end(), may_follow);
}

}  // namespace

std::string term_names_refusal(const std::vector<std::string>& names) {
  if (names.size() > kMostTerms)
    return fmt::format("{} terms; a loss has at most {}", names.size(), kMostTerms);
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (!is_name(*name)) {
      return fmt::format("\"{}\": expected 1 to {} letters, digits, _ . / or -, a letter, a digit or _ first",
                         *name, kLongestName);
    }
    if (*name == "loss") return "\"loss\" is the name of what is trained";
    if (std::find(names.begin(), name, *name) != name) return fmt::format("\"{}\" stands there twice", *name);
  }
  return "";
}

}  // namespace stagecraft
