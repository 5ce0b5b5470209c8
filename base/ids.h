#pragma once

// Numbers with meaning have types, so that a stage is never passed where a rank is expected.
// All are plain values: cheap to copy, ordered, hashable, default "none" (-1) for the indices.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace stagecraft {

/// A zero-based index into one kind of thing. `Id<X>{}` is "none".
template <class Kind>
struct Id {
  std::int32_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(std::int32_t v) : value(v) {}
  constexpr explicit Id(std::size_t v) : value(static_cast<std::int32_t>(v)) {}
  [[nodiscard]] constexpr bool valid() const { return value >= 0; }
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  constexpr auto operator<=>(const Id&) const = default;
};

using StageId = Id<struct StageKind>;  ///< stage of the model, 0 reads the data, the last computes the loss
using MicroBatch = Id<struct MicroKind>;  ///< micro-batch, counted from the start of its segment
using Rank = Id<struct RankKind>;         ///< position in the launcher's world
using Version = Id<struct VersionKind>;   ///< version of a stage's weights, counted from the segment's start
using Group = Id<struct GroupKind>;       ///< accumulation: the g-th update of its segment
using Slot = Id<struct SlotKind>;         ///< receive buffer of a rank

/// Requested tensor bytes (not what an allocator rounds them up to).
struct Bytes {
  std::int64_t value = 0;
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::int64_t v) : value(v) {}
  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes o) {
    value += o.value;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes o) {
    value -= o.value;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes{a.value + b.value}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes{a.value - b.value}; }
  friend constexpr Bytes operator*(Bytes a, std::int64_t n) { return Bytes{a.value * n}; }
};

/// A duration or a moment on a monotonic clock. JSON carries milliseconds (keys end in `_ms`).
struct Seconds {
  double value = 0;
  constexpr Seconds() = default;
  constexpr explicit Seconds(double v) : value(v) {}
  constexpr auto operator<=>(const Seconds&) const = default;
  constexpr Seconds& operator+=(Seconds o) {
    value += o.value;
    return *this;
  }
  constexpr Seconds& operator-=(Seconds o) {
    value -= o.value;
    return *this;
  }
  friend constexpr Seconds operator+(Seconds a, Seconds b) { return Seconds{a.value + b.value}; }
  friend constexpr Seconds operator-(Seconds a, Seconds b) { return Seconds{a.value - b.value}; }
  friend constexpr Seconds operator*(Seconds a, double f) { return Seconds{a.value * f}; }
  friend constexpr Seconds operator/(Seconds a, double f) { return Seconds{a.value / f}; }
  friend constexpr double operator/(Seconds a, Seconds b) { return a.value / b.value; }
};

}  // namespace stagecraft

template <class Kind>
struct std::hash<stagecraft::Id<Kind>> {
  std::size_t operator()(stagecraft::Id<Kind> id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};
