#pragma once

// Dropout with masks by name: the mask of (seed, layer, step, micro-batch, stream) is the same on every rank,
// in every order and on any number of threads, so a recomputed forward repeats it to the bit.
//
// A mask is one byte per element. Probabilities are held to 16 bits (a step of 1.5e-5), and the scale is that of
// the probability used, so the expectation is exact.

#include "models/tensors/random.h"

#include <ATen/core/Tensor.h>

namespace stagecraft {

class Dropout {
 public:
  /// `probability` of zeroing, from 0 up to but not 1.
  explicit Dropout(double probability, std::uint32_t stream = 0);

  /// False where dropout is the identity: probability 0, or evaluation.
  [[nodiscard]] bool applies(const Context& context) const;
  /// x becomes mask * scale * x, in its memory where that is the CPU's; returns the mask, bool, of x's shape
  /// (dense). `x` is dense.
  [[nodiscard]] at::Tensor drop_(at::Tensor& x, const RandomKey& key) const;
  /// mask * scale * x: the forward on a tensor that must stay, and the backward.
  [[nodiscard]] at::Tensor apply(const at::Tensor& x, const at::Tensor& mask) const;
  void apply_(at::Tensor& x, const at::Tensor& mask) const;
  /// On `device`, which draws it: the same bits on every one.
  [[nodiscard]] at::Tensor mask(at::IntArrayRef shape, const RandomKey& key,
                                at::Device device = at::kCPU) const;
  [[nodiscard]] double probability() const { return probability_; }

 private:
  double probability_;
  std::uint32_t threshold_;  // of 2^16: an element stays if its 16 bits are not below
  double scale_;
  std::uint32_t stream_;
};

}  // namespace stagecraft
