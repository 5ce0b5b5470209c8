#pragma once

// Kernels for devices of operators that LibTorch, or stagecraft, has for CPUs alone. Captures are made on a
// CPU, so their graphs have its forms of attention and of recurrent layers.
//
//   attention  as eager PyTorch on a GPU: memory-efficient attention where that kernel takes the shapes, else
//              softmax(q k^T scale + mask) v, whose backward makes the probabilities again from their
//              log-sum. Both are deterministic; neither draws random numbers, since graphs have no dropout here
//              (operators.h).
//   LSTM       a product of all steps' inputs, then step by step; the backward makes the gates again.
//
// What a forward hands its backward, the log-sum, has the shape that the device's own backward reads.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace stagecraft::captured {

/// Registers them for CUDA, once. Works without a device; nothing is registered for the CPU.
void register_device_kernels();

// On any device; what is registered calls them.

/// Mixed values and log-sums, [samples, heads, queries(, size)]. `mask` is added to the scores, or null.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor> plain_attention(const at::Tensor& q, const at::Tensor& k,
                                                                 const at::Tensor& v, bool causal,
                                                                 const std::optional<at::Tensor>& mask,
                                                                 double scale);
/// Gradients of q, k and v.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor> plain_attention_backward(
    const at::Tensor& grad_mixed, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& mixed, const at::Tensor& log_sum, bool causal, const std::optional<at::Tensor>& mask,
    double scale);

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
