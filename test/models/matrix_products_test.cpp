#include "models/tensors/matrix_products.h"

#include "models/layers/gradient_accumulator.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <vector>

using namespace stagecraft;

namespace {

at::Tensor numbers(std::int64_t rows, std::int64_t columns) {
  return at::arange(rows * columns, at::kFloat).mul_(0.37).sin_().view({rows, columns});
}

/// As it is, and as a transposed view of the same numbers.
std::vector<at::Tensor> both_layouts(const at::Tensor& matrix) {
  return {matrix, matrix.t().contiguous().t()};
}

double worst(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected).abs().max().item<double>();
}

}  // namespace

TEST_CASE("oneDNN's products are those of float64, in any layout, and the same each time",
          "[matrix_products]") {
  const c10::InferenceMode no_autograd;
  REQUIRE(has_onednn_products());
  for (const auto& [m, k, n] :
       {std::array<std::int64_t, 3>{1, 1, 1}, {1, 7, 5}, {33, 65, 17}, {128, 64, 192}}) {
    const at::Tensor a = numbers(m, k), b = numbers(k, n), bias = numbers(1, n).view({n});
    const at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    for (const at::Tensor& left : both_layouts(a)) {
      for (const at::Tensor& right : both_layouts(b)) {
        const at::Tensor found = product(MatrixProducts::onednn, left, right);
        CHECK(found.sizes() == expected.sizes());
        CHECK(worst(found, expected) < 1e-5);
        CHECK(found.equal(product(MatrixProducts::onednn, left, right)));
        const at::Tensor plus = product_plus(MatrixProducts::onednn, bias, left, right);
        CHECK(worst(plus, expected + bias.to(at::kDouble)) < 1e-5);
      }
    }
  }
}

TEST_CASE("what oneDNN does not take goes to ATen", "[matrix_products]") {
  const c10::InferenceMode no_autograd;
  const at::Tensor a = numbers(8, 16), b = numbers(16, 4);
  for (const at::ScalarType type : {at::kDouble, at::kBFloat16}) {
    const at::Tensor left = a.to(type), right = b.to(type);
    CHECK(product(MatrixProducts::onednn, left, right).equal(at::mm(left, right)));
  }
  const at::Tensor empty = product(MatrixProducts::onednn, at::empty({0, 16}), b);
  CHECK(empty.sizes() == at::IntArrayRef({0, 4}));
  const at::Tensor meta = product(MatrixProducts::onednn, a.to(at::kMeta), b.to(at::kMeta));
  CHECK(meta.sizes() == at::IntArrayRef({8, 4}));
  CHECK(product(MatrixProducts::blas, a, b).equal(at::mm(a, b)));
}

TEST_CASE("gradients add up as products of the library that was asked for", "[matrix_products]") {
  const c10::InferenceMode no_autograd;
  const at::Tensor dy = numbers(24, 6), x = numbers(24, 10);
  GradientAccumulator sums({at::zeros({6, 10})}, MatrixProducts::onednn);
  const at::Tensor once = product(MatrixProducts::onednn, dy.t(), x);
  sums.add_product(0, dy.t(), x);
  CHECK(sums.gradients()[0].equal(once));
  sums.add_product(0, dy.t(), x);
  CHECK(sums.gradients()[0].equal(once + once));
}
