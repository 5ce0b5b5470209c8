#include "stagecraft/models/check_gradients.h"

#include "stagecraft/base/error.h"
#include "stagecraft/models/gradient_accumulator.h"
#include "stagecraft/models/libtorch_error.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

namespace stagecraft {
namespace {

Tensors clones(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

/// One layer, and what all checks of it share.
class Check {
 public:
  Check(const Layer& layer, at::Tensor input) : layer_(layer), input_(std::move(input)) {
    for (const ParameterSpec& spec : layer.parameters())
      parameters_.push_back(at::randn(spec.shape, at::kDouble).mul_(0.5));
    for (const BufferSpec& spec : layer.buffers())
      buffers_.push_back(at::rand(spec.shape, at::kDouble).add_(0.5).to(spec.dtype.value_or(at::kDouble)));
  }

  void run() {
    differentiate();
    const c10::NoGradGuard no_grad;
    const Tensors before = clones(parameters_);
    const at::Tensor input = input_.clone();
    check_meta();

    Kept kept;
    (void)forward(&kept);
    GradientAccumulator sums(parameters_);
    const at::Tensor grad_input = layer_.backward_input(parameters_, grad_output_, kept, true);
    require(kept.for_input.empty(), "backward_input leaves tensors in kept.for_input");
    backward_weight(kept, sums);
    if (input_.is_floating_point()) require_close(grad_input, grad_input_, "the input");
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      require_close(sums.gradients()[i], gradients_[i], layer_.parameters()[i].name);
    }
    require_same(halves(/*apart=*/true), halves(/*apart=*/false), "with two micro-batches' halves apart");

    Kept first;
    (void)forward(&first);
    GradientAccumulator without(parameters_);
    (void)layer_.backward_input(parameters_, grad_output_, first, /*needs_input_gradient=*/false);
    backward_weight(first, without);
    require_same(without.gradients(), sums.gradients(), "without an input gradient");
    require(at::equal(input, input_), "forward or backward modifies the input");
    require_same(parameters_, before, "after a backward, which modifies the parameters,");
  }

 private:
  at::Tensor forward(Kept* kept) {
    Tensors buffers = clones(buffers_);
    return layer_.forward({parameters_, buffers}, input_, {}, kept);
  }

  void backward_weight(Kept& kept, GradientSink& sink) const {
    if (!parameters_.empty()) layer_.backward_weight(kept, sink);
    require(parameters_.empty() || kept.for_weight.empty(),
            "backward_weight leaves tensors in kept.for_weight");
  }

  /// Autograd through the forward.
  void differentiate() {
    Tensors leaves, buffers = clones(buffers_);
    for (const at::Tensor& parameter : parameters_) leaves.push_back(parameter.clone().requires_grad_(true));
    const bool numbers = input_.is_floating_point();
    at::Tensor x = input_.clone();
    if (numbers) x.requires_grad_(true);
    const at::Tensor output = layer_.forward({leaves, buffers}, x, {}, nullptr);
    grad_output_ = at::randn_like(output.detach());
    if (output.requires_grad()) output.backward(grad_output_);
    const auto gradient = [](const at::Tensor& of) {
      return of.grad().defined() ? of.grad() : at::zeros_like(of);
    };
    for (const at::Tensor& leaf : leaves) gradients_.push_back(gradient(leaf));
    if (numbers) grad_input_ = gradient(x);
  }

  void check_meta() {
    Tensors parameters, buffers;
    for (const at::Tensor& t : parameters_) parameters.push_back(t.to(at::kMeta));
    for (const at::Tensor& t : buffers_) buffers.push_back(t.to(at::kMeta));
    const at::Tensor meta = layer_.forward({parameters, buffers}, input_.to(at::kMeta), {}, nullptr);
    require(meta.sizes() == grad_output_.sizes(), "the forward on the meta device gives another shape");
  }

  /// Weight gradients of two micro-batches, their halves apart as in zero-bubble schedules, or not.
  Tensors halves(bool apart) {
    GradientAccumulator sum(parameters_);
    Kept first, second;
    (void)forward(&first);
    (void)forward(&second);
    (void)layer_.backward_input(parameters_, grad_output_, first, true);
    if (!apart) backward_weight(first, sum);
    (void)layer_.backward_input(parameters_, grad_output_, second, true);
    if (apart) backward_weight(first, sum);
    backward_weight(second, sum);
    return clones(sum.gradients());
  }

  void require(bool holds, const std::string& otherwise) const {
    if (!holds) throw InternalError(fmt::format("{} ({}): {}", layer_.name(), layer_.type(), otherwise));
  }

  void require_close(const at::Tensor& ours, const at::Tensor& expected, const std::string& what) const {
    require(ours.defined(), fmt::format("the gradient of {} is missing", what));
    require(ours.sizes() == expected.sizes(), fmt::format("the gradient of {} has another shape", what));
    if (ours.numel() == 0) return;
    const double difference = (ours.sub(expected)).abs().max().item<double>();
    const double size = expected.abs().max().item<double>();
    require(difference <= 1e-10 * (1 + size),
            fmt::format("the gradient of {} differs from autograd's by {:.3g}, its largest element is {:.3g}",
                        what, difference, size));
  }

  void require_same(const Tensors& ours, const Tensors& others, const std::string& when) const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      require(at::equal(ours[i], others[i]),
              fmt::format("{} {} has other bits", when, layer_.parameters()[i].name));
    }
  }

  const Layer& layer_;
  at::Tensor input_, grad_output_, grad_input_;
  Tensors parameters_, buffers_, gradients_;
};

}  // namespace

void check_gradients(const Layer& layer, const at::Tensor& input) {
  named([&] { return layer.name(); }, [&] { Check(layer, input).run(); });
}

}  // namespace stagecraft
