#include "models/captured/operators/lstm.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mkldnn_rnn_layer_backward.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace stagecraft::captured {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

constexpr std::int64_t kGates = 4;
constexpr std::int64_t kLstm = 2;  // of oneDNN's recurrent layers

/// What the kernel reads: dense, and of sizes that fit together. It checks none of them itself.
struct Given {
  Tensor x, w_ih, w_hh, b_ih, b_hh, hx, cx;
  bool biased = false, reverse = false;

  Given(const Tensor& its_x, const Tensor& its_w_ih, const Tensor& its_w_hh, const Optional& its_b_ih,
        const Optional& its_b_hh, const Tensor& its_hx, const Tensor& its_cx, bool its_reverse)
      : x(its_x.contiguous()),
        w_ih(its_w_ih),
        w_hh(its_w_hh),
        hx(its_hx.contiguous()),
        cx(its_cx.contiguous()),
        biased(its_b_ih.has_value() && its_b_ih->defined()),
        reverse(its_reverse) {
    TORCH_CHECK(biased == (its_b_hh.has_value() && its_b_hh->defined()), "lstm: one bias of two");
    b_ih = biased ? *its_b_ih : at::zeros_like(w_ih);
    b_hh = biased ? *its_b_hh : at::zeros_like(w_hh);
    TORCH_CHECK(x.dim() == 3 && hx.dim() == 2,
                "lstm: expected x of [steps, samples, numbers] and hx of "
                "[samples, size], found ",
                x.sizes(), " and ", hx.sizes());
    const std::int64_t size = hidden_size(), gates = kGates * size;
    require(w_ih, {gates, x.size(2)}, "w_ih");
    require(w_hh, {gates, size}, "w_hh");
    require(hx, {x.size(1), size}, "hx");
    require(cx, {x.size(1), size}, "cx");
    if (biased) require(b_ih, {gates}, "b_ih"), require(b_hh, {gates}, "b_hh");
    TORCH_CHECK(x.numel() > 0, "lstm: x has no elements");
  }

  [[nodiscard]] std::int64_t hidden_size() const { return hx.size(1); }

  void require(const Tensor& tensor, at::IntArrayRef sizes, const char* name) const {
    TORCH_CHECK(tensor.sizes() == sizes && tensor.scalar_type() == x.scalar_type(), "lstm: ", name, " is ",
                tensor.scalar_type(), tensor.sizes(), ", expected ", x.scalar_type(), sizes);
  }

  /// y, h, c, workspace.
  [[nodiscard]] std::tuple<Tensor, Tensor, Tensor, Tensor> run(bool train) const {
    const at::AutoGradMode decides_whether_there_is_a_workspace(train);
    return at::mkldnn_rnn_layer(x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, /*batch_sizes=*/{}, kLstm,
                                hidden_size(), /*num_layers=*/1, biased, /*bidirectional=*/false,
                                /*batch_first=*/false, train);
  }
};

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& x, const Tensor& w_ih, const Tensor& w_hh,
                                        const Optional& b_ih, const Optional& b_hh, const Tensor& hx,
                                        const Tensor& cx, bool reverse, bool train) {
  auto [y, h, c, workspace] = Given(x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse).run(train);
  return {y, h, c};
}

/// Gradients of x, w_ih, w_hh, each of the biases, hx and cx.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> lstm_backward(
    const Tensor& grad_y, const Tensor& grad_h, const Tensor& grad_c, const Tensor& x, const Tensor& w_ih,
    const Tensor& w_hh, const Optional& b_ih, const Optional& b_hh, const Tensor& hx, const Tensor& cx,
    bool reverse) {
  const Given given(x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse);
  given.require(grad_y, {x.size(0), x.size(1), given.hidden_size()}, "grad_y");
  given.require(grad_h, hx.sizes(), "grad_h");
  given.require(grad_c, cx.sizes(), "grad_c");
  const auto [y, h, c, workspace] = given.run(/*train=*/true);
  auto made = at::mkldnn_rnn_layer_backward(
      given.x, given.w_ih, given.w_hh, given.b_ih, given.b_hh, given.hx, given.cx, y, h, c,
      grad_y.contiguous(), grad_h.contiguous(), grad_c.contiguous(), reverse, kLstm, given.hidden_size(),
      /*num_layers=*/1, given.biased, /*train=*/true, /*bidirectional=*/false, /*batch_sizes=*/{},
      /*batch_first=*/false, workspace);
  return {std::get<0>(made), std::get<1>(made), std::get<2>(made),
          std::get<3>(made), std::get<5>(made), std::get<6>(made)};
}

constexpr const char* kForward =
    "lstm(Tensor x, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, Tensor hx, Tensor cx, "
    "bool reverse, bool train) -> (Tensor, Tensor, Tensor)";
constexpr const char* kBackward =
    "lstm_backward(Tensor grad_y, Tensor grad_h, Tensor grad_c, Tensor x, Tensor w_ih, Tensor w_hh, "
    "Tensor? b_ih, Tensor? b_hh, Tensor hx, Tensor cx, bool reverse) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)";

}  // namespace

void register_lstm() {
  static const auto& library = *[] {
    auto* made = new torch::Library(torch::Library::FRAGMENT, "stagecraft", std::nullopt, __FILE__, __LINE__);
    made->def(kForward);
    made->def(kBackward);
    made->impl("lstm", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(lstm)));
    made->impl("lstm_backward", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(lstm_backward)));
    return made;
  }();
  (void)library;
}

}  // namespace stagecraft::captured
