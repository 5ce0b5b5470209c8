#pragma once

// What a GPU can compute at most, as its maker says.

#include <optional>
#include <string>

namespace stagecraft {

/// What matrix products are computed in.
enum class Products : unsigned char { float64, float32, tf32, narrow };  ///< narrow: bfloat16, float16

/// Floating-point operations per second of dense matrix products, for a device's name as CUDA tells it; none
/// for one that is not in the table. Sources: NVIDIA's data sheets of A100 (2021), H100 (2023), H200 (2024),
/// without sparsity.
[[nodiscard]] std::optional<double> peak_flops(const std::string& device, Products products);

}  // namespace stagecraft
