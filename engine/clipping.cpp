#include "engine/clipping.h"

#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>

namespace stagecraft {

double sum_of_squares(const at::Tensor& gradient) {
  const double norm =
      at::linalg_vector_norm(gradient, 2, at::OptionalIntArrayRef(), /*keepdim=*/false, at::kDouble)
          .item<double>();
  return norm * norm;
}

double clip_factor(double norm, double max_norm) { return std::min(1.0, max_norm / (norm + 1e-6)); }

}  // namespace stagecraft
