#include "stagecraft/models/captured/device_kernels.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace stagecraft::captured {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

bool is_given(const Optional& tensor) { return tensor.has_value() && tensor->defined(); }

double scale_of(const Tensor& q, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
}

/// In the type that products accumulate in.
Tensor scores(const Tensor& q, const Tensor& k, bool causal, const Optional& mask, double scale) {
  const at::ScalarType type = at::toOpMathType(q.scalar_type());
  Tensor made = at::matmul(q.to(type), k.to(type).transpose(-2, -1)).mul_(scale);
  if (is_given(mask)) {
    made = mask->scalar_type() == at::kBool
               ? made.masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity())
               : made.add_(*mask);
  }
  if (causal) {
    const Tensor later =
        at::ones({q.size(-2), k.size(-2)}, q.options().dtype(at::kBool)).triu_(/*diagonal=*/1);
    made.masked_fill_(later, -std::numeric_limits<double>::infinity());
  }
  return made;
}

bool takes_efficient(const Tensor& q, const Tensor& v, const Optional& mask) {
  constexpr std::int64_t kAligned = 8;
  const bool narrow_or_float = q.scalar_type() != at::kDouble;
  const bool adds = !is_given(mask) || mask->scalar_type() == q.scalar_type();
  return narrow_or_float && adds && q.size(-1) % kAligned == 0 && v.size(-1) % kAligned == 0;
}

/// As the kernel reads a mask: of every head, rows aligned.
Optional as_bias(const Optional& mask, const Tensor& q, const Tensor& k) {
  if (!is_given(mask)) return std::nullopt;
  constexpr std::int64_t kRow = 16;
  const std::int64_t keys = k.size(-2);
  Tensor all = mask->expand({q.size(0), q.size(1), q.size(2), keys});
  if (keys % kRow == 0) return all;
  return at::constant_pad_nd(all, {0, kRow - keys % kRow}).narrow(-1, 0, keys);
}

std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v, double dropout,
                                     bool causal, const Optional& mask, std::optional<double> scale) {
  TORCH_CHECK(dropout == 0, "attention of a captured graph draws no random numbers");
  if (!takes_efficient(q, v, mask)) return plain_attention(q, k, v, causal, mask, scale_of(q, scale));
  auto [mixed, log_sum, seed, offset] = at::_scaled_dot_product_efficient_attention(
      q, k, v, as_bias(mask, q, k), /*compute_log_sumexp=*/true, 0, causal, scale);
  return {std::move(mixed), std::move(log_sum)};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& grad_mixed, const Tensor& q,
                                                      const Tensor& k, const Tensor& v, const Tensor& mixed,
                                                      const Tensor& log_sum, double dropout, bool causal,
                                                      const Optional& mask, std::optional<double> scale) {
  TORCH_CHECK(dropout == 0, "attention of a captured graph draws no random numbers");
  if (!takes_efficient(q, v, mask)) {
    return plain_attention_backward(grad_mixed, q, k, v, mixed, log_sum, causal, mask, scale_of(q, scale));
  }
  const Tensor unused = at::empty({}, q.options().dtype(at::kLong));  // of dropout's generator
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      grad_mixed, q, k, v, as_bias(mask, q, k).value_or(Tensor()), mixed, log_sum, unused, unused, 0,
      {true, true, true, false}, causal, scale);
  return {std::move(dq), std::move(dk), std::move(dv)};
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

std::tuple<Tensor, Tensor> plain_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                           const Optional& mask, double scale) {
  const Tensor made = scores(q, k, causal, mask, scale);
  const Tensor log_sum = at::logsumexp(made, -1);
  const Tensor probabilities = at::softmax(made, -1);
  return {at::matmul(probabilities, v.to(made.scalar_type())).to(q.scalar_type()), log_sum};
}

std::tuple<Tensor, Tensor, Tensor> plain_attention_backward(const Tensor& grad_mixed, const Tensor& q,
                                                            const Tensor& k, const Tensor& v,
                                                            const Tensor& mixed, const Tensor& log_sum,
                                                            bool causal, const Optional& mask, double scale) {
  const Tensor probabilities = scores(q, k, causal, mask, scale).sub_(log_sum.unsqueeze(-1)).exp_();
  const at::ScalarType type = probabilities.scalar_type();
  const Tensor grad = grad_mixed.to(type);
  const Tensor dv = at::matmul(probabilities.transpose(-2, -1), grad);
  const Tensor row = (grad * mixed.to(type)).sum(-1, /*keepdim=*/true);
  const Tensor d_scores =
      at::matmul(grad, v.to(type).transpose(-2, -1)).sub_(row).mul_(probabilities).mul_(scale);
  const Tensor dq = at::matmul(d_scores, k.to(type));
  const Tensor dk = at::matmul(d_scores.transpose(-2, -1), q.to(type));
  return {dq.to(q.scalar_type()), dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

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
