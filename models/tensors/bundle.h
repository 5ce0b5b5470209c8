#pragma once

// What goes on from one layer to the next: one tensor, or several. Between stages a bundle travels as one
// tensor: its values one after the other, as bytes. A bundle of one travels as that value itself.
//
// Floating-point values have gradients, others have none. So the gradients of a bundle are a bundle too, of
// those values alone.

#include "models/tensors/tensors.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace stagecraft {

using Bundle = Tensors;

/// One of a bundle's values.
struct ValueSpec {
  /// The samples are the first dimension, but between captured layers, where they may be another.
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;

  [[nodiscard]] std::int64_t bytes() const;
  /// Without the samples' dimension. Nothing of a number between captured layers, which has no dimension.
  [[nodiscard]] std::vector<std::int64_t> of_one_sample() const;
  [[nodiscard]] bool has_gradient() const { return c10::isFloatingType(dtype); }
  friend bool operator==(const ValueSpec&, const ValueSpec&) = default;
};

/// A bundle for a given micro-batch size.
struct BoundarySpec {
  /// Of the tensor that travels.
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  std::vector<ValueSpec> values;  ///< at least one

  BoundarySpec() = default;
  explicit BoundarySpec(std::vector<ValueSpec> its_values);
  explicit BoundarySpec(const Bundle& bundle);

  [[nodiscard]] std::int64_t bytes() const;
  /// Of the gradients that come back. Requires a value that has one.
  [[nodiscard]] BoundarySpec gradients() const;
};

/// In a packed bundle each value begins at a multiple of this, in bytes.
inline constexpr std::int64_t kValueAlignment = 64;

/// One tensor with memory of its own; of a bundle of one that value itself, with the memory that it has.
[[nodiscard]] at::Tensor packed(const Bundle& bundle);
/// Views of `tensor`, which is packed as `spec` says.
[[nodiscard]] Bundle unpacked(const BoundarySpec& spec, const at::Tensor& tensor);

/// Each value dense, as it travels. Undefined ones, of values that go another way, stay so.
[[nodiscard]] Bundle contiguous(Bundle bundle);

}  // namespace stagecraft
