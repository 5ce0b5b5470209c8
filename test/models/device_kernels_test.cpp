// What captured graphs run on GPUs, as far as that can be known without one: LibTorch's dispatcher says which
// operators have a kernel there, and kernels of ours give what the CPU's own forms give.

#include "models/captured/operators/device_kernels.h"

#include "base/error.h"
#include "engine/device/operators.h"
#include "models/captured/operators/device_attention.h"
#include "models/captured/operators/grouped_mm.h"
#include "models/captured/operators/operators.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::captured;

namespace {

bool has_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  using Key = c10::DispatchKey;
  for (const Key one : {key, Key::CompositeExplicitAutograd, Key::CompositeImplicitAutograd,
                        Key::CompositeExplicitAutogradNonFunctional}) {
    if (op.hasKernelForDispatchKey(one)) return true;
  }
  return false;
}

/// Strides too: the next step of a graph may be a view.
bool close(const at::Tensor& a, const at::Tensor& b, double within) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && at::allclose(a, b, within, within);
}

}  // namespace

TEST_CASE("every operator of captured graphs has a kernel on CPUs and on GPUs", "[device_kernels]") {
  register_device_kernels();
  bool cuda = true;
  try {
    load_cuda_operators();
  } catch (const InputError& error) {
    cuda = false;
    WARN("no GPU kernels to ask for: " << error.what());
  }
  std::vector<std::string> missing;
  for (const Operator& op : operators()) {
    const c10::OperatorHandle handle = handle_of(op);
    if (!has_kernel(handle, c10::DispatchKey::CPU)) missing.push_back(std::string(op.name) + " on CPUs");
    if (cuda && !has_kernel(handle, c10::DispatchKey::CUDA))
      missing.push_back(std::string(op.name) + " on GPUs");
  }
  CHECK(missing == std::vector<std::string>{});
  CHECK(operators().size() > 300);
}

TEST_CASE("attention for devices gives what the CPU's kernel gives, forwards and backwards",
          "[device_kernels]") {
  at::manual_seed(7);
  const auto options = at::TensorOptions(at::kDouble);
  for (const bool causal : {false, true}) {
    // None, added, of every head, with a query that no key is open to, without samples and heads.
    for (const int masked : {0, 1, 2, 3, 4}) {
      if (causal && masked > 0) continue;
      for (const std::int64_t heads : {6, 3, 1}) {  // of keys and values
        const bool by_token = heads == 3;           // as models' own projections lie
        const auto made_of = [&](std::int64_t its_heads, std::int64_t tokens) {
          if (!by_token) return at::randn({2, its_heads, tokens, 4}, options);
          return at::randn({2, tokens, its_heads, 3 * 4}, options).narrow(3, 4, 4).transpose(1, 2);
        };
        const std::int64_t keys = causal ? 5 : 7;
        Attention its{
            .q = made_of(6, 5), .k = made_of(heads, keys), .v = made_of(heads, keys), .causal = causal};
        const at::Tensor grad = at::randn({2, 6, 5, 4}, options);
        if (masked > 0 && masked < 4) its.mask = at::randn({2, masked == 1 ? 1 : 6, 5, 7}, options);
        if (masked == 3) its.mask->select(2, 1).fill_(-std::numeric_limits<double>::infinity());
        if (masked == 4) its.mask = at::randn({5, 7}, options);
        for (const std::optional<double> scale : {std::optional<double>(), std::optional(0.3)}) {
          INFO(causal << " " << masked << " " << heads << " " << scale.value_or(0));
          its.scale = scale;
          const auto [mixed, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
              its.q, its.k, its.v, 0, causal, its.mask, scale);
          const auto [ours, our_sum] = attend(AttentionKernel::plain, its);
          CHECK(close(ours, mixed, 1e-12));
          CHECK(our_sum.sizes() == log_sum.sizes());
          const auto expected = at::_scaled_dot_product_flash_attention_for_cpu_backward(
              grad, its.q, its.k, its.v, mixed, log_sum, 0, causal, its.mask, scale);
          // Another kernel's log-sums are as good, in whole blocks too.
          const at::Tensor in_blocks = at::constant_pad_nd(our_sum, {0, 32 - 5}, 1e9);
          for (const at::Tensor& sum : {our_sum, in_blocks}) {
            const auto made = attend_backward(AttentionKernel::plain, its, grad, ours, sum);
            CHECK(close(std::get<0>(made), std::get<0>(expected), 1e-11));
            CHECK(close(std::get<1>(made), std::get<1>(expected), 1e-11));
            CHECK(close(std::get<2>(made), std::get<2>(expected), 1e-11));
          }
        }
      }
    }
  }
}

TEST_CASE("an LSTM for devices gives what oneDNN's gives, forwards and backwards", "[device_kernels]") {
  at::manual_seed(11);
  const c10::OperatorHandle forward = handle_of(*find_operator("stagecraft::lstm"));
  const c10::OperatorHandle backward = handle_of(*find_operator("stagecraft::lstm_backward"));
  for (const bool reverse : {false, true}) {
    for (const bool biased : {false, true}) {
      INFO(reverse << biased);
      const std::int64_t steps = 4, samples = 3, width = 5, size = 6;
      const at::Tensor x = at::randn({steps, samples, width});
      const at::Tensor w_ih = at::randn({4 * size, width}).mul_(0.3);
      const at::Tensor w_hh = at::randn({4 * size, size}).mul_(0.3);
      std::optional<at::Tensor> b_ih, b_hh;
      if (biased) {
        b_ih = at::randn({4 * size});
        b_hh = at::randn({4 * size});
      }
      const at::Tensor hx = at::randn({samples, size});
      const at::Tensor cx = at::randn({samples, size});
      c10::Stack stack{x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, true};
      forward.callBoxed(&stack);
      const auto [y, h, c] = plain_lstm(x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, true);
      CHECK(close(y, stack[0].toTensor(), 1e-5));
      CHECK(close(h, stack[1].toTensor(), 1e-5));
      CHECK(close(c, stack[2].toTensor(), 1e-5));

      const at::Tensor grad_y = at::randn({steps, samples, size});
      const at::Tensor grad_h = at::randn({samples, size});
      const at::Tensor grad_c = at::randn({samples, size});
      c10::Stack back{grad_y, grad_h, grad_c, x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse};
      backward.callBoxed(&back);
      const auto made =
          plain_lstm_backward(grad_y, grad_h, grad_c, x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse);
      CHECK(close(std::get<0>(made), back[0].toTensor(), 1e-4));
      CHECK(close(std::get<1>(made), back[1].toTensor(), 1e-4));
      CHECK(close(std::get<2>(made), back[2].toTensor(), 1e-4));
      CHECK(close(std::get<3>(made), back[3].toTensor(), 1e-4));
      CHECK(close(std::get<4>(made), back[4].toTensor(), 1e-4));
      CHECK(close(std::get<5>(made), back[5].toTensor(), 1e-4));
    }
  }
}

TEST_CASE("products of experts for devices give what LibTorch's give on the CPU", "[device_kernels]") {
  at::manual_seed(11);
  const c10::OperatorHandle op = handle_of(*find_operator("stagecraft::grouped_mm"));
  const std::int64_t rows = 7, in = 8, out = 4;
  const at::Tensor x = at::randn({rows, in});
  const at::Tensor weights = at::randn({3, out, in}).transpose(1, 2);
  at::Tensor gradient = at::randn({rows, out});
  gradient[6][1] = std::numeric_limits<float>::infinity();  // one expert's, and no other's
  for (const std::vector<std::int32_t>& ends :
       {std::vector<std::int32_t>{2, 5, 7}, {0, 7, 7}, {7, 7, 7}, {0, 0, 7}}) {
    INFO(ends[0] << "," << ends[1]);
    const at::Tensor its = at::tensor(ends, at::kInt);
    c10::Stack forward{x, weights, its};
    op.callBoxed(&forward);
    CHECK(close(plain_grouped_mm(x, weights, its), forward[0].toTensor(), 1e-5));
    c10::Stack backward{x.t(), gradient, its};
    op.callBoxed(&backward);
    const at::Tensor made = plain_grouped_mm(x.t(), gradient, its), expected = backward[0].toTensor();
    CHECK(made.strides() == expected.strides());
    CHECK(at::allclose(made, expected, 1e-5, 1e-5, /*equal_nan=*/true));
  }
}

TEST_CASE("ends of experts that are not those of all rows are refused", "[device_kernels]") {
  const c10::OperatorHandle op = handle_of(*find_operator("stagecraft::grouped_mm"));
  const at::Tensor x = at::ones({7, 8}), weights = at::ones({3, 8, 4});
  for (const std::vector<std::int32_t>& ends :
       {std::vector<std::int32_t>{2, 5, 6}, {2, 5, 8}, {5, 2, 7}, {-1, 5, 7}, {2, 7}}) {
    INFO(ends[0] << "," << ends[1]);
    c10::Stack stack{x, weights, at::tensor(ends, at::kInt)};
    CHECK_THROWS_AS(op.callBoxed(&stack), c10::Error);
  }
}
