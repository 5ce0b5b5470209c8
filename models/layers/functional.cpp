#include "models/layers/functional.h"

#include "base/error.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft::functional {
namespace {

/// The shape of `tensor` with its last dimension replaced.
std::vector<std::int64_t> with_last(const at::Tensor& tensor, std::int64_t last) {
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  shape.back() = last;
  return shape;
}

/// Only the CPU's kernels take scale and shift of another type than the values.
at::Tensor as_read(const at::Tensor& parameter, const at::Tensor& x) {
  return x.is_cpu() ? parameter : parameter.to(x.scalar_type());
}

}  // namespace

void kept_otherwise(std::size_t wanted, std::size_t found) {
  throw InternalError(fmt::format(
      "the backward takes {} tensors out of `kept`, which has {}: the half before it has to put them there",
      wanted, found));
}

at::Tensor rows(const at::Tensor& tensor) {
  return tensor.dim() == 2 ? tensor : tensor.reshape({-1, tensor.size(-1)});
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  MatrixProducts products) {
  const at::Tensor x2 = rows(x);
  at::Tensor y =
      bias.defined() ? product_plus(products, bias, x2, weight.t()) : product(products, x2, weight.t());
  return x.dim() == 2 ? y : y.view(with_last(x, weight.size(0)));
}

at::Tensor linear_grad_input(const at::Tensor& grad_output, const at::Tensor& weight,
                             MatrixProducts products) {
  at::Tensor dx = product(products, rows(grad_output), weight);
  return grad_output.dim() == 2 ? dx : dx.view(with_last(grad_output, weight.size(1)));
}

void linear_grad_weight(GradientSink& sink, int weight, int bias, const at::Tensor& grad_output,
                        const at::Tensor& x) {
  const at::Tensor dy = rows(grad_output);
  sink.add_product(weight, dy.t(), rows(x));
  if (bias >= 0) sink.add(bias, dy.sum(0));
}

ParameterSpec norm_scale(const std::string& name, std::int64_t features) {
  return {.name = name, .shape = {features}, .initial = {Initial::Kind::ones, 0}, .full = true};
}

ParameterSpec norm_shift(const std::string& name, std::int64_t features) {
  return {.name = name, .shape = {features}, .initial = {}, .full = true};
}

Normed layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  if (x.is_meta()) return {at::empty_like(x), {}, {}};  // ATen has no such kernel
  auto [output, mean, rstd] =
      at::native_layer_norm(x, weight.sizes(), as_read(weight, x), as_read(bias, x), epsilon);
  return {std::move(output), std::move(mean), std::move(rstd)};
}

NormGradients layer_norm_backward(const at::Tensor& grad_output, const at::Tensor& x, const at::Tensor& mean,
                                  const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& bias,
                                  bool needs_input_gradient) {
  auto [dx, dweight, dbias] =
      at::native_layer_norm_backward(grad_output, x, weight.sizes(), mean, rstd, as_read(weight, x),
                                     as_read(bias, x), {needs_input_gradient, true, true});
  return {std::move(dx), std::move(dweight), std::move(dbias)};
}

}  // namespace stagecraft::functional
