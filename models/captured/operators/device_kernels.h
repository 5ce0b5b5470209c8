#pragma once

// Kernels for devices of operators that LibTorch, or stagecraft, has for CPUs alone. Captures are made on a
// CPU, so their graphs have its forms of attention and of recurrent layers.
//
//   attention  device_attention.h
//   LSTM       a product of all steps' inputs, then step by step; the backward makes the gates again.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace stagecraft::captured {

/// Registers them for CUDA, once. Works without a device; nothing is registered for the CPU.
void register_device_kernels();

// On any device; what is registered calls them.

/// As stagecraft::lstm: y, h, c.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor> plain_lstm(
    const at::Tensor& x, const at::Tensor& w_ih, const at::Tensor& w_hh,
    const std::optional<at::Tensor>& b_ih, const std::optional<at::Tensor>& b_hh, const at::Tensor& hx,
    const at::Tensor& cx, bool reverse, bool train);
/// As stagecraft::lstm_backward: gradients of x, w_ih, w_hh, each of the biases, hx and cx.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
plain_lstm_backward(const at::Tensor& grad_y, const at::Tensor& grad_h, const at::Tensor& grad_c,
                    const at::Tensor& x, const at::Tensor& w_ih, const at::Tensor& w_hh,
                    const std::optional<at::Tensor>& b_ih, const std::optional<at::Tensor>& b_hh,
                    const at::Tensor& hx, const at::Tensor& cx, bool reverse);

}  // namespace stagecraft::captured
