#pragma once

// Numbers with meaning have types, so that a stage is never passed where a rank is expected.
// All are plain values: cheap to copy, ordered, hashable, default "none" (-1) for the indices.

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

namespace stagecraft {

/// A number that is not negative, or an enumerator, as an index.
template <class N>
requires std::integral<N> || std::is_enum_v<N>
[[nodiscard]] constexpr std::size_t to_size(N n) { return static_cast<std::size_t>(n); }

/// A zero-based index into one kind of thing. `Id<X>{}` is "none".
template <class Kind>
struct Id {
  std::int32_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(std::int32_t v) : value(v) {}
  constexpr explicit Id(std::size_t v) : value(static_cast<std::int32_t>(v)) {}
  [[nodiscard]] constexpr bool valid() const { return value >= 0; }
  [[nodiscard]] constexpr std::size_t index() const { return to_size(value); }
  constexpr auto operator<=>(const Id&) const = default;
};

using StageId = Id<struct StageKind>;  ///< stage of the model, 0 reads the data, the last computes the loss
using MicroBatch = Id<struct MicroKind>;  ///< micro-batch, counted from the start of its segment
using Rank = Id<struct RankKind>;         ///< position in the launcher's world
using Version = Id<struct VersionKind>;   ///< version of a stage's weights, counted from the segment's start
using Group = Id<struct GroupKind>;       ///< accumulation: the g-th update of its segment
using Slot = Id<struct SlotKind>;         ///< receive buffer of a rank
using TieId = Id<struct TieKind>;  ///< weight that several layers hold: position in ProgramHeader::ties

/// An amount in one unit; default 0.
template <class Number, class Unit>
struct Quantity {
  Number value = 0;

  constexpr Quantity() = default;
  constexpr explicit Quantity(Number v) : value(v) {}
  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity o) { return *this = *this + o; }
  constexpr Quantity& operator-=(Quantity o) { return *this = *this - o; }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity{a.value + b.value}; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity{a.value - b.value}; }
  friend constexpr Quantity operator*(Quantity a, Number n) { return Quantity{a.value * n}; }
};

/// Requested tensor bytes (not what an allocator rounds them up to).
using Bytes = Quantity<std::int64_t, struct BytesUnit>;

/// A duration or a moment on a monotonic clock. JSON carries milliseconds (keys end in `_ms`).
using Seconds = Quantity<double, struct SecondsUnit>;
constexpr Seconds operator/(Seconds a, double f) { return Seconds{a.value / f}; }
constexpr double operator/(Seconds a, Seconds b) { return a.value / b.value; }

}  // namespace stagecraft

template <class Kind>
struct std::hash<stagecraft::Id<Kind>> {
  std::size_t operator()(stagecraft::Id<Kind> id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};
