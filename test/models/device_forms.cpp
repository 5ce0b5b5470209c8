// The forms that captured graphs take on GPUs, as operators made of others, so that PyTorch's fake tensors go
// through them: for test/scripts/device_forms_test.py, which loads this library.

#include "models/captured/operators/device_attention.h"
#include "models/captured/operators/device_kernels.h"
#include "models/captured/operators/grouped_mm.h"

#include <torch/library.h>

namespace stagecraft::captured {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

std::tuple<Tensor, Tensor> forward(std::int64_t kernel, const Tensor& q, const Tensor& k, const Tensor& v,
                                   bool causal, const Optional& mask, std::optional<double> scale) {
  return attend(static_cast<AttentionKernel>(kernel), {q, k, v, causal, mask, scale});
}

std::tuple<Tensor, Tensor, Tensor> backward(std::int64_t kernel, const Tensor& grad, const Tensor& q,
                                            const Tensor& k, const Tensor& v, const Tensor& mixed,
                                            const Tensor& log_sum, bool causal, const Optional& mask,
                                            std::optional<double> scale) {
  return attend_backward(static_cast<AttentionKernel>(kernel), {q, k, v, causal, mask, scale}, grad, mixed,
                         log_sum);
}

TORCH_LIBRARY(stagecraft_forms, library) {
  library.def(
      "attend(int kernel, Tensor q, Tensor k, Tensor v, bool causal, Tensor? mask, float? scale) -> (Tensor, "
      "Tensor)",
      &forward);
  library.def(
      "attend_backward(int kernel, Tensor grad, Tensor q, Tensor k, Tensor v, Tensor mixed, Tensor log_sum, "
      "bool causal, Tensor? mask, float? scale) -> (Tensor, Tensor, Tensor)",
      &backward);
  library.def(
      "lstm(Tensor x, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, Tensor hx, Tensor cx, bool "
      "reverse, "
      "bool train) -> (Tensor, Tensor, Tensor)",
      &plain_lstm);
  library.def(
      "lstm_backward(Tensor grad_y, Tensor grad_h, Tensor grad_c, Tensor x, Tensor w_ih, Tensor w_hh, "
      "Tensor? "
      "b_ih, Tensor? b_hh, Tensor hx, Tensor cx, bool reverse) -> (Tensor, Tensor, Tensor, Tensor, Tensor, "
      "Tensor)",
      &plain_lstm_backward);
  library.def("grouped_mm(Tensor x, Tensor y, Tensor ends) -> Tensor", &plain_grouped_mm);
}

}  // namespace
}  // namespace stagecraft::captured
