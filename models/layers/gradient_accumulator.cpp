#include "models/layers/gradient_accumulator.h"

#include "base/error.h"
#include "models/tensors/shape_text.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

namespace stagecraft {

GradientAccumulator::GradientAccumulator(const Tensors& parameters, MatrixProducts products, const Layer* of)
    : written_(parameters.size(), false), products_(products), of_(of) {
  gradients_.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) {
    gradients_.push_back(at::empty_like(parameter, at::MemoryFormat::Contiguous));
  }
}

bool GradientAccumulator::first(int parameter) {
  const bool first = !written_[parameter];
  written_[parameter] = true;
  if (!filled_.empty()) filled_[parameter] = false;
  return first;
}

std::string GradientAccumulator::name_of(int parameter) const {
  return of_ == nullptr ? fmt::format("parameter {}", parameter)
                        : fmt::format("parameter {} (\"{}\")", parameter,
                                      of_->parameters().at(static_cast<std::size_t>(parameter)).name);
}

const at::Tensor& GradientAccumulator::sum_for(int parameter, const at::Tensor& one) const {
  const std::size_t count = gradients_.size();
  if (parameter < 0 || static_cast<std::size_t>(parameter) >= count) {
    throw InternalError(fmt::format("backward_weight adds a gradient of parameter {}, and the layer has {}{}",
                                    parameter, count, count > 0 ? ", numbered from 0" : ""));
  }
  if (!one.defined()) {
    throw InternalError(fmt::format("backward_weight adds an undefined gradient of {}", name_of(parameter)));
  }
  if (!c10::isFloatingType(one.scalar_type())) {
    throw InternalError(fmt::format("backward_weight adds a gradient of {} that is of {}", name_of(parameter),
                                    c10::toString(one.scalar_type())));
  }
  return gradients_[static_cast<std::size_t>(parameter)];
}

// The BLAS multiplies straight into the sum: no temporary of the parameter's size. addmm rounds differently from
// mm followed by add, which is why layers must not choose between the two themselves.
void GradientAccumulator::add_product(int parameter, const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor& its = sum_for(parameter, left);
  if (!right.defined() || left.dim() != 2 || right.dim() != 2 || left.size(1) != right.size(0) ||
      left.size(0) * right.size(1) != its.numel()) {
    throw InternalError(fmt::format("backward_weight adds {} times {} to the gradient of {}, which is of {}",
                                    shape_text(left.sizes()),
                                    right.defined() ? shape_text(right.sizes()) : "an undefined tensor",
                                    name_of(parameter), shape_text(its.sizes())));
  }
  const bool as_it_is = its.dim() == 2 && its.size(0) == left.size(0);  // a view less per micro-batch
  at::Tensor sum = as_it_is ? its : its.view({left.size(0), right.size(1)});
  // No kernel multiplies narrow and adds wide, and oneDNN's adds to no sum.
  if (left.scalar_type() != sum.scalar_type() || products_ == MatrixProducts::onednn) {
    add(parameter, product(products_, left, right).view(its.sizes()));
    return;
  }
  if (first(parameter)) {
    at::mm_out(sum, left, right);
  } else {
    sum.addmm_(left, right);
  }
}

void GradientAccumulator::add(int parameter, const at::Tensor& gradient) {
  const at::Tensor& sum = sum_for(parameter, gradient);
  if (gradient.sizes() != sum.sizes()) {
    throw InternalError(
        fmt::format("backward_weight adds a gradient of {} that is of {}; the parameter is of {}",
                    name_of(parameter), shape_text(gradient.sizes()), shape_text(sum.sizes())));
  }
  if (first(parameter)) {
    sum.copy_(gradient);
  } else {
    sum.add_(gradient);
  }
}

void GradientAccumulator::clear() {
  written_.assign(written_.size(), false);
  filled_.clear();
}

const Tensors& GradientAccumulator::gradients() {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (written_[i]) continue;
    gradients_[i].zero_();
    written_[i] = true;
    filled_.resize(gradients_.size(), false);
    filled_[i] = true;
  }
  return gradients_;
}

std::vector<bool> GradientAccumulator::received() const {
  std::vector<bool> received = written_;
  for (std::size_t i = 0; i < filled_.size(); ++i) received[i] = received[i] && !filled_[i];
  return received;
}

}  // namespace stagecraft
