#pragma once

// Products of float32 matrices on the CPU, by either of the two libraries that LibTorch carries. ATen gives
// them to its BLAS, MKL, which on AMD's processors computes with AVX2 where AVX-512 would take half the time.
// oneDNN uses what the processor has. The two round differently: only `blas` equals eager PyTorch to the bit.

#include "base/describe.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace stagecraft {

enum class MatrixProducts : std::uint8_t { blas, onednn };
template <>
inline constexpr std::array enum_names<MatrixProducts>{"blas", "onednn"};

/// left @ right, of [m, k] and [k, n], either of which may be a transposed view. Tensors that are not float32
/// on the CPU, and empty ones, go to ATen whatever `by` says. No autograd. Any thread.
[[nodiscard]] at::Tensor product(MatrixProducts by, const at::Tensor& left, const at::Tensor& right);
/// The same, plus `bias` [n] in every row.
[[nodiscard]] at::Tensor product_plus(MatrixProducts by, const at::Tensor& bias, const at::Tensor& left,
                                      const at::Tensor& right);

/// Whether this LibTorch was built with oneDNN.
[[nodiscard]] bool has_onednn_products();

/// Operations per second of one core.
struct ProductRates {
  double blas = 0;
  double onednn = 0;  ///< 0 without oneDNN
};
/// What a product of usual size reaches on one thread, the best of a few, taken in turn so that what else runs on
/// this core slows both. Takes about 0.1 s.
[[nodiscard]] ProductRates measure_products();

}  // namespace stagecraft
