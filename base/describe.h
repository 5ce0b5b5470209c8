#pragma once

// What a type needs to describe itself for files and messages (json.h), without JSON: names of enums, bounds
// of numbers.

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace stagecraft {

/// Specialize for an enum that appears in JSON, with the names of its values in their order, from 0 on:
/// `template <> inline constexpr std::array enum_names<Color>{"red", "green"};`
template <class E>
inline constexpr std::array<const char*, 0> enum_names{};

/// The name of an enum value in files and messages.
template <class E>
[[nodiscard]] std::string enum_name(E value) {
  static_assert(!enum_names<E>.empty(), "give the enum names");
  const auto at = static_cast<std::size_t>(value);
  return at < enum_names<E>.size() ? enum_names<E>[at] : "?";
}

/// The value of that name, if there is one.
template <class E>
[[nodiscard]] std::optional<E> enum_named(std::string_view name) {
  const auto& names = enum_names<E>;
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? std::nullopt : std::optional(static_cast<E>(found - names.begin()));
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
[[nodiscard]] constexpr Range at_least(double min) { return {.min = min}; }
[[nodiscard]] constexpr Range above(double min) { return {.min = min, .open_min = true}; }
[[nodiscard]] constexpr Range between(double min, double max) { return {.min = min, .max = max}; }
/// `max` excluded.
[[nodiscard]] constexpr Range from_up_to(double min, double max) {
  return {.min = min, .max = max, .open_max = true};
}
[[nodiscard]] constexpr Range non_empty() { return at_least(1); }

}  // namespace json
}  // namespace stagecraft
