#pragma once

// What a type needs to describe itself for files and messages (json.h), without JSON: names of enums, bounds
// of numbers.

#include <array>
#include <limits>
#include <string>
#include <utility>

namespace stagecraft {

/// Specialize for an enum that appears in JSON: `static constexpr std::array values{std::pair{E::a, "a"},
/// ...};`
template <class E>
struct EnumNames;

/// The name of an enum value in files and messages.
template <class E>
[[nodiscard]] std::string enum_name(E value) {
  for (const auto& [candidate, name] : EnumNames<E>::values) {
    if (candidate == value) return name;
  }
  return "?";
}

namespace json {

/// Bounds of a number; of an array's or string's length when put on one of those.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false;  ///< min itself is not allowed
  bool open_max = false;

  [[nodiscard]] bool holds(double x) const;
  [[nodiscard]] std::string text() const;  ///< "at least 1", "above 0 and at most 1"
};
[[nodiscard]] Range at_least(double min);
[[nodiscard]] Range above(double min);
[[nodiscard]] Range between(double min, double max);
[[nodiscard]] Range from_up_to(double min, double max);  ///< max excluded
[[nodiscard]] inline Range non_empty() { return at_least(1); }

}  // namespace json
}  // namespace stagecraft
