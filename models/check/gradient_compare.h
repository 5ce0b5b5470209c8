#pragma once

// Written-out gradients of a function against autograd's, and against differences of the function itself where autograd
// does not see through it (a kernel of one's own).

#include "models/tensors/tensors.h"

#include <functional>
#include <string>
#include <vector>

namespace stagecraft {

/// A number made from some tensors. Must not modify them; may be called with autograd on or off.
using Scalar = std::function<at::Tensor(const Tensors& of)>;

struct GradientVerdict {
  bool holds = false;
  std::string said;  ///< "autograd", "differences", or what is wrong
};

/// For each of the tensors `of`, all floating-point, whether `ours` is the gradient of `scalar`. An undefined one of
/// ours is a gradient that is missing.
[[nodiscard]] std::vector<GradientVerdict> compare_gradients(const Scalar& scalar, const Tensors& of,
                                                             const Tensors& ours);

}  // namespace stagecraft
