#include "models/tensors/matrix_products.h"

#include "base/error.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <optional>

namespace stagecraft {
namespace {

// x W^T + b, W in any layout: the operator that torch.compile fuses linear layers into. LibTorch has no header
// for it.
using Linear = at::Tensor(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, c10::string_view attribute,
                          c10::List<std::optional<c10::Scalar>> scalars,
                          std::optional<c10::string_view> algorithm);

std::optional<c10::OperatorHandle> found() {
  return c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
}

at::Tensor linear_pointwise(const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
  static const c10::TypedOperatorHandle<Linear> op = [] {
    const std::optional<c10::OperatorHandle> handle = found();
    STAGECRAFT_CHECK(handle.has_value(), "this LibTorch has no oneDNN");
    return handle->typed<Linear>();
  }();
  return op.call(x, weight, bias, "none", c10::List<std::optional<c10::Scalar>>(), std::nullopt);
}

bool takes(MatrixProducts by, const at::Tensor& left, const at::Tensor& right) {
  const auto fits = [](const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.numel() > 0;
  };
  return by == MatrixProducts::onednn && fits(left) && fits(right);
}

}  // namespace

at::Tensor product(MatrixProducts by, const at::Tensor& left, const at::Tensor& right) {
  return takes(by, left, right) ? linear_pointwise(left, right.t(), std::nullopt) : at::mm(left, right);
}

at::Tensor product_plus(MatrixProducts by, const at::Tensor& bias, const at::Tensor& left,
                        const at::Tensor& right) {
  return takes(by, left, right) ? linear_pointwise(left, right.t(), bias) : at::addmm(bias, left, right);
}

bool has_onednn_products() { return found().has_value(); }

ProductRates measure_products() {
  constexpr std::int64_t kRows = 512, kIn = 512, kOut = 1024;
  constexpr int kRuns = 8;
  const c10::InferenceMode no_autograd;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor x = at::ones({kRows, kIn}), weight = at::ones({kOut, kIn});
  const auto rate = [&](MatrixProducts by) {
    const auto begin = std::chrono::steady_clock::now();
    (void)product(by, x, weight.t());
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    return 2.0 * kRows * kIn * kOut / time.count();
  };
  ProductRates best;
  for (int i = 0; i < kRuns; ++i) {
    best.blas = std::max(best.blas, rate(MatrixProducts::blas));
    if (has_onednn_products()) best.onednn = std::max(best.onednn, rate(MatrixProducts::onednn));
  }
  at::set_num_threads(threads);
  return best;
}

}  // namespace stagecraft
