#include "models/captured/operators/gru.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace stagecraft::captured {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

constexpr std::int64_t kGruGates = 3;

bool is_there(const Optional& tensor) { return tensor.has_value() && tensor->defined(); }

void require(const Tensor& tensor, const Tensor& like, at::IntArrayRef sizes, const char* name) {
  TORCH_CHECK(tensor.sizes() == sizes && tensor.scalar_type() == like.scalar_type(), "gru: ", name, " is ",
              tensor.scalar_type(), tensor.sizes(), ", expected ", like.scalar_type(), sizes);
}

/// Of [steps, samples, size], and hx of [samples, size].
void require_states(const Tensor& y, const Tensor& hx, const char* name) {
  TORCH_CHECK(hx.dim() == 2 && y.dim() == 3 && y.numel() > 0, "gru: expected ", name,
              " of [steps, samples, size] and hx of [samples, size], found ", y.sizes(), " and ", hx.sizes());
  require(y, hx, {y.size(0), hx.size(0), hx.size(1)}, name);
}

struct Gates {
  Tensor of_new;  ///< the hidden state's part of the new one
  Tensor reset, update, fresh;
};

/// Slices of one product, as LibTorch's own: kernels round the last elements of a row by where they lie.
Gates gates(const Tensor& of_input, const Tensor& hidden, const Tensor& w_hh, const Optional& b_hh) {
  const Tensor of_hidden = at::linear(hidden, w_hh, b_hh);
  const std::vector<Tensor> both = (of_hidden + of_input).chunk(kGruGates, 1);
  Gates its{of_hidden.chunk(kGruGates, 1)[2], both[0].sigmoid(), both[1].sigmoid(), {}};
  its.fresh = (of_input.chunk(kGruGates, 1)[2] + its.of_new * its.reset).tanh();
  return its;
}

/// Of the k-th step that is taken.
std::int64_t step_of(std::int64_t k, std::int64_t steps, bool reverse) { return reverse ? steps - 1 - k : k; }

/// What the k-th step begins with: a copy, since products on some processors round by where their arguments lie
/// within a vector.
Tensor state_before(const Tensor& hx, const Tensor& y, std::int64_t k, bool reverse) {
  return k == 0 ? hx : y[step_of(k - 1, y.size(0), reverse)].clone();
}

std::tuple<Tensor, Tensor> gru(const Tensor& of_input, const Tensor& w_hh, const Optional& b_hh,
                               const Tensor& hx, bool reverse) {
  TORCH_CHECK(of_input.dim() == 3 && hx.dim() == 2 && of_input.numel() > 0,
              "gru: expected of_input of [steps, samples, gates] and hx of [samples, size], found ",
              of_input.sizes(), " and ", hx.sizes());
  const std::int64_t steps = of_input.size(0), size = hx.size(1);
  require(of_input, hx, {steps, hx.size(0), kGruGates * size}, "of_input");
  require(w_hh, hx, {kGruGates * size, size}, "w_hh");
  if (is_there(b_hh)) require(*b_hh, hx, {kGruGates * size}, "b_hh");
  std::vector<Tensor> y(static_cast<std::size_t>(steps));
  Tensor hidden = hx;
  for (std::int64_t k = 0; k < steps; ++k) {
    const std::int64_t t = step_of(k, steps, reverse);
    const Gates its = gates(of_input[t], hidden, w_hh, b_hh);
    hidden = (hidden - its.fresh) * its.update + its.fresh;
    y[static_cast<std::size_t>(t)] = hidden;
  }
  return {at::stack(y), hidden};
}

/// Gradients of of_input, of the hidden states' part of the gates, and of hx. Sums as autograd adds.
std::tuple<Tensor, Tensor, Tensor> gru_backward(const Optional& grad_y, const Optional& grad_h,
                                                const Tensor& of_input, const Tensor& w_hh,
                                                const Optional& b_hh, const Tensor& hx, const Tensor& y,
                                                bool reverse) {
  require_states(y, hx, "y");
  const std::int64_t steps = y.size(0), size = hx.size(1);
  require(of_input, hx, {steps, hx.size(0), kGruGates * size}, "of_input");
  require(w_hh, hx, {kGruGates * size, size}, "w_hh");
  if (is_there(b_hh)) require(*b_hh, hx, {kGruGates * size}, "b_hh");
  if (is_there(grad_y)) require(*grad_y, hx, y.sizes(), "grad_y");
  if (is_there(grad_h)) require(*grad_h, hx, hx.sizes(), "grad_h");
  std::vector<Tensor> of_inputs(static_cast<std::size_t>(steps)), of_hiddens(of_inputs.size()), addends;
  if (is_there(grad_h)) addends.push_back(*grad_h);
  const Tensor zeros = at::zeros_like(hx);
  for (std::int64_t k = steps; k-- > 0;) {
    const std::int64_t t = step_of(k, steps, reverse);
    if (is_there(grad_y)) addends.insert(addends.begin(), (*grad_y)[t]);
    Tensor grad = addends.empty() ? zeros : addends[0];
    for (std::size_t i = 1; i < addends.size(); ++i) grad = grad + addends[i];
    const Tensor before = state_before(hx, y, k, reverse);
    const Gates its = gates(of_input[t], before, w_hh, b_hh);
    const Tensor passed = grad * its.update;
    const Tensor d_update = at::sigmoid_backward(grad * (before - its.fresh), its.update);
    const Tensor d_fresh = at::tanh_backward(grad + passed.neg(), its.fresh);
    const Tensor d_reset = at::sigmoid_backward(d_fresh * its.of_new, its.reset);
    const Tensor of_both = at::cat({d_reset, d_update, zeros}, 1);
    of_inputs[static_cast<std::size_t>(t)] = at::cat({zeros, zeros, d_fresh}, 1) + of_both;
    const Tensor of_hidden = at::cat({zeros, zeros, d_fresh * its.reset}, 1) + of_both;
    of_hiddens[static_cast<std::size_t>(t)] = of_hidden;
    addends = {passed, of_hidden.mm(w_hh)};
  }
  return {at::stack(of_inputs), at::stack(of_hiddens), addends[0] + addends[1]};
}

/// Gradients of w_hh and b_hh.
std::tuple<Tensor, Tensor> gru_backward_weight(const Tensor& of_hidden, const Tensor& hx, const Tensor& y,
                                               bool reverse) {
  require_states(y, hx, "y");
  const std::int64_t steps = y.size(0);
  require(of_hidden, hx, {steps, hx.size(0), kGruGates * hx.size(1)}, "of_hidden");
  Tensor d_w_hh, d_b_hh;
  for (std::int64_t k = steps; k-- > 0;) {
    const Tensor its = of_hidden[step_of(k, steps, reverse)].clone();
    const Tensor of_w_hh = its.t().mm(state_before(hx, y, k, reverse));
    const Tensor of_b_hh = its.sum({0}, /*keepdim=*/true).view({-1});
    d_w_hh = d_w_hh.defined() ? d_w_hh + of_w_hh : of_w_hh;
    d_b_hh = d_b_hh.defined() ? d_b_hh + of_b_hh : of_b_hh;
  }
  return {d_w_hh, d_b_hh};
}

constexpr const char* kSchemas[] = {
    "gru(Tensor of_input, Tensor w_hh, Tensor? b_hh, Tensor hx, bool reverse) -> (Tensor, Tensor)",
    "gru_backward(Tensor? grad_y, Tensor? grad_h, Tensor of_input, Tensor w_hh, Tensor? b_hh, Tensor hx, "
    "Tensor y, "
    "bool reverse) -> (Tensor, Tensor, Tensor)",
    "gru_backward_weight(Tensor of_hidden, Tensor hx, Tensor y, bool reverse) -> (Tensor, Tensor)",
};

}  // namespace

void register_gru() {
  static const auto& library = *[] {
    auto* made = new torch::Library(torch::Library::FRAGMENT, "stagecraft", std::nullopt, __FILE__, __LINE__);
    for (const char* schema : kSchemas) made->def(schema);
    for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
      made->impl("gru", torch::dispatch(key, TORCH_FN(gru)));
      made->impl("gru_backward", torch::dispatch(key, TORCH_FN(gru_backward)));
      made->impl("gru_backward_weight", torch::dispatch(key, TORCH_FN(gru_backward_weight)));
    }
    return made;
  }();
  (void)library;
}

}  // namespace stagecraft::captured
