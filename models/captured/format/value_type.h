#pragma once

// The types of captured values: "f32[16*b+1,64]" is an element type and a shape whose sizes depend on b, the
// number of samples of a micro-batch (docs/reference/model_folder.md).

#include "base/error.h"

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft::captured {

/// times * b + plus.
struct AffineSize {
  std::int64_t times = 0;
  std::int64_t plus = 0;

  [[nodiscard]] bool depends_on_b() const { return times != 0; }
  /// Throws InputError where it does not fit 64 bits.
  [[nodiscard]] std::int64_t at(std::int64_t b) const;
  /// "64", "b", "16*b+1".
  [[nodiscard]] std::string text() const;
  friend bool operator==(const AffineSize&, const AffineSize&) = default;
};

struct ValueType {
  at::ScalarType dtype = at::kFloat;
  std::vector<AffineSize> sizes;

  [[nodiscard]] bool depends_on_b() const;
  /// Throws InputError where a size is negative or does not fit 64 bits.
  [[nodiscard]] std::vector<std::int64_t> at(std::int64_t b) const;
  /// The b, from 1 on, for which the sizes are `shape`; none where there is no such b. 1 for a type that does
  /// not depend on b and has that shape.
  [[nodiscard]] std::optional<std::int64_t> samples_of(c10::ArrayRef<std::int64_t> shape) const;
  [[nodiscard]] std::string text() const;
  friend bool operator==(const ValueType&, const ValueType&) = default;
};

/// Throws InputError with `place` for anything but an element type and sizes in brackets.
[[nodiscard]] ValueType parse_value_type(std::string_view text, const InputPlace& place);

/// "f32", "bool"; none where the format has no such element type.
[[nodiscard]] std::optional<at::ScalarType> dtype_named(std::string_view name);
[[nodiscard]] std::string dtype_name(at::ScalarType dtype);
/// "f32, f64, ...", for messages.
[[nodiscard]] std::string all_dtype_names();

}  // namespace stagecraft::captured
