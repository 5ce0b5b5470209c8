#include "stagecraft/models/gradient_accumulator.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

namespace stagecraft {

GradientAccumulator::GradientAccumulator(const Tensors& parameters, MatrixProducts products)
    : written_(parameters.size(), false), products_(products) {
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

// The BLAS multiplies straight into the sum: no temporary of the parameter's size. addmm rounds differently from
// mm followed by add, which is why layers must not choose between the two themselves.
void GradientAccumulator::add_product(int parameter, const at::Tensor& left, const at::Tensor& right) {
  at::Tensor sum = gradients_[parameter].view({left.size(0), right.size(1)});
  // No kernel multiplies narrow and adds wide, and oneDNN's adds to no sum.
  if (left.scalar_type() != sum.scalar_type() || products_ == MatrixProducts::onednn) {
    add(parameter, product(products_, left, right).view(gradients_[parameter].sizes()));
    return;
  }
  if (first(parameter)) {
    at::mm_out(sum, left, right);
  } else {
    sum.addmm_(left, right);
  }
}

void GradientAccumulator::add(int parameter, const at::Tensor& gradient) {
  at::Tensor& sum = gradients_[parameter];
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
