#include "models/captured/operators/device_kernels.h"

#include "models/captured/operators/device_attention.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <utility>
#include <vector>

namespace stagecraft::captured {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v, double dropout,
                                     bool causal, const Optional& mask, std::optional<double> scale) {
  TORCH_CHECK(dropout == 0, "attention of a captured graph draws no random numbers");
  const Attention its{q, k, v, causal, mask, scale};
  return attend(attention_kernel(its), its);
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& grad_mixed, const Tensor& q,
                                                      const Tensor& k, const Tensor& v, const Tensor& mixed,
                                                      const Tensor& log_sum, double dropout, bool causal,
                                                      const Optional& mask, std::optional<double> scale) {
  TORCH_CHECK(dropout == 0, "attention of a captured graph draws no random numbers");
  const Attention its{q, k, v, causal, mask, scale};
  return attend_backward(attention_kernel(its), its, grad_mixed, mixed, log_sum);
}

/// One direction's gates of all steps, each [samples, size], in the order in which the steps are taken.
struct LstmSteps {
  std::vector<std::int64_t> order;
  std::vector<Tensor> input, forget, candidate, output, cell, hidden;  ///< cell and hidden: after the step

  LstmSteps(const Tensor& x, const Tensor& w_ih, const Tensor& w_hh, const Optional& b_ih,
            const Optional& b_hh, const Tensor& hx, const Tensor& cx, bool reverse) {
    const Tensor of_inputs = at::linear(x, w_ih, b_ih);
    Tensor h = hx;
    Tensor c = cx;
    for (std::int64_t k = 0; k < x.size(0); ++k) {
      const std::int64_t t = reverse ? x.size(0) - 1 - k : k;
      const std::vector<Tensor> gates = (of_inputs[t] + at::linear(h, w_hh, b_hh)).chunk(4, 1);
      input.push_back(gates[0].sigmoid());
      forget.push_back(gates[1].sigmoid());
      candidate.push_back(gates[2].tanh());
      output.push_back(gates[3].sigmoid());
      c = forget.back() * c + input.back() * candidate.back();
      h = output.back() * c.tanh();
      cell.push_back(c);
      hidden.push_back(h);
      order.push_back(t);
    }
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor> plain_lstm(const Tensor& x, const Tensor& w_ih, const Tensor& w_hh,
                                              const Optional& b_ih, const Optional& b_hh, const Tensor& hx,
                                              const Tensor& cx, bool reverse, bool /*train*/) {
  const LstmSteps steps(x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse);
  std::vector<Tensor> y(steps.order.size());
  for (std::size_t k = 0; k < y.size(); ++k) y[static_cast<std::size_t>(steps.order[k])] = steps.hidden[k];
  return {at::stack(y), steps.hidden.back(), steps.cell.back()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> plain_lstm_backward(
    const Tensor& grad_y, const Tensor& grad_h, const Tensor& grad_c, const Tensor& x, const Tensor& w_ih,
    const Tensor& w_hh, const Optional& b_ih, const Optional& b_hh, const Tensor& hx, const Tensor& cx,
    bool reverse) {
  const LstmSteps steps(x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse);
  Tensor dh = grad_h;
  Tensor dc = grad_c;
  Tensor d_w_hh = at::zeros_like(w_hh);
  std::vector<Tensor> d_gates(steps.order.size());
  for (std::size_t k = steps.order.size(); k-- > 0;) {
    const Tensor& before = k == 0 ? hx : steps.hidden[k - 1];
    const Tensor& cell_before = k == 0 ? cx : steps.cell[k - 1];
    const Tensor tanh_c = steps.cell[k].tanh();
    dh = dh + grad_y[steps.order[k]];
    dc = dc + dh * steps.output[k] * (1 - tanh_c * tanh_c);
    const auto through_sigmoid = [](const Tensor& grad, const Tensor& gate) {
      return grad * gate * (1 - gate);
    };
    const Tensor gates = at::cat({through_sigmoid(dc * steps.candidate[k], steps.input[k]),
                                  through_sigmoid(dc * cell_before, steps.forget[k]),
                                  dc * steps.input[k] * (1 - steps.candidate[k] * steps.candidate[k]),
                                  through_sigmoid(dh * tanh_c, steps.output[k])},
                                 1);
    d_w_hh.add_(at::matmul(gates.t(), before));
    dh = at::matmul(gates, w_hh);
    dc = dc * steps.forget[k];
    d_gates[static_cast<std::size_t>(steps.order[k])] = gates;
  }
  const Tensor all = at::stack(d_gates);  // [steps, samples, gates]
  const Tensor flat = all.reshape({-1, all.size(2)});
  const Tensor d_bias = flat.sum(0);
  return {at::matmul(all, w_ih), at::matmul(flat.t(), x.reshape({-1, x.size(2)})), d_w_hh, d_bias, dh, dc};
}

void register_device_kernels() {
  static constexpr auto kKey = c10::DispatchKey::CUDA;
  static const auto& aten = *[] {
    auto* made = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
    made->impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(attention));
    made->impl("_scaled_dot_product_flash_attention_for_cpu_backward", TORCH_FN(attention_backward));
    return made;
  }();
  static const auto& ours = *[] {
    auto* made = new torch::Library(torch::Library::IMPL, "stagecraft", kKey, __FILE__, __LINE__);
    made->impl("lstm", TORCH_FN(plain_lstm));
    made->impl("lstm_backward", TORCH_FN(plain_lstm_backward));
    return made;
  }();
  (void)aten;
  (void)ours;
}

}  // namespace stagecraft::captured
