#include "models/captured/operators/grouped_mm.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft::captured {
namespace {

using at::Tensor;

/// Of [rows, in] by [experts, in, out], which makes [rows, out]; or of [in, rows] by [rows, out], each expert's
/// gradient, which makes [experts, in, out].
std::int64_t rows_of(const Tensor& x, const Tensor& y, const Tensor& ends) {
  TORCH_CHECK(x.dim() == 2 && (y.dim() == 2 || y.dim() == 3) && x.scalar_type() == y.scalar_type() &&
                  x.is_floating_point() && x.size(1) == y.size(-2),
              "grouped_mm: x is ", x.scalar_type(), x.sizes(), ", y ", y.scalar_type(), y.sizes());
  TORCH_CHECK(ends.dim() == 1 && ends.size(0) > 0 && ends.scalar_type() == at::kInt &&
                  (y.dim() == 2 || ends.size(0) == y.size(0)),
              "grouped_mm: ends is ", ends.scalar_type(), ends.sizes(), " for y of ", y.sizes());
  return y.dim() == 3 ? x.size(0) : x.size(1);
}

Tensor grouped_mm(const Tensor& x, const Tensor& y, const Tensor& ends) {
  const std::int64_t rows = rows_of(x, y, ends);
  const Tensor dense = ends.contiguous();
  const auto* const its = dense.const_data_ptr<std::int32_t>();
  std::int64_t before = 0;
  for (std::int64_t e = 0; e < dense.size(0); ++e) {
    TORCH_CHECK(before <= its[e] && its[e] <= rows, "grouped_mm: ends has ", its[e], " behind ", before,
                ", of ", rows, " rows");
    before = its[e];
  }
  TORCH_CHECK(before == rows, "grouped_mm: ends has ", before, " last, and there are ", rows, " rows");
  return at::_grouped_mm(x, y, dense);
}

}  // namespace

Tensor plain_grouped_mm(const Tensor& x, const Tensor& y, const Tensor& ends) {
  const std::int64_t rows = rows_of(x, y, ends);
  const Tensor expert =
      at::searchsorted(ends, at::arange(rows, ends.options()), /*out_int32=*/true, /*right=*/true);
  if (y.dim() == 3) {
    Tensor made = x.new_zeros({rows, y.size(2)});
    for (std::int64_t e = 0; e < ends.size(0); ++e) {
      made = at::where(expert.eq(e).unsqueeze(1), x.mm(y[e]), made);
    }
    return made;
  }
  std::vector<Tensor> made;
  for (std::int64_t e = 0; e < ends.size(0); ++e) {
    const Tensor others = expert.ne(e);  // of both, since 0 times infinity is no number
    made.push_back(x.masked_fill(others, 0).mm(y.masked_fill(others.unsqueeze(1), 0)));
  }
  return at::stack(made);
}

void register_grouped_mm() {
  static const auto& library = *[] {
    auto* made = new torch::Library(torch::Library::FRAGMENT, "stagecraft", std::nullopt, __FILE__, __LINE__);
    made->def("grouped_mm(Tensor x, Tensor y, Tensor ends) -> Tensor");
    made->impl("grouped_mm", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(grouped_mm)));
    made->impl("grouped_mm", torch::dispatch(c10::DispatchKey::CUDA, TORCH_FN(plain_grouped_mm)));
    return made;
  }();
  (void)library;
}

}  // namespace stagecraft::captured
