#pragma once

// `stagecraft::grouped_mm` of captured graphs: the rows that each expert of a mixture gets, times its weights, as
// LibTorch's `_grouped_mm` computes them on the CPU, to the bit. Rows lie in the order of their experts, and `ends`
// has where each expert's end. LibTorch leaves rows behind the last end unwritten; here all rows have an expert.

#include <ATen/core/Tensor.h>

namespace stagecraft::captured {

/// The same from plain operators, which does not make the host wait for `ends`: every expert multiplies all rows, and
/// its own are taken. For devices.
[[nodiscard]] at::Tensor plain_grouped_mm(const at::Tensor& x, const at::Tensor& y, const at::Tensor& ends);

/// Registers it with LibTorch's dispatcher, once.
void register_grouped_mm();

}  // namespace stagecraft::captured
