#include "stagecraft/models/loss.h"

#include "stagecraft/base/error.h"

#include <ATen/ATen.h>

namespace stagecraft {
namespace {

/// Logits as [units, classes], in at least single precision.
at::Tensor logit_rows(const at::Tensor& output) {
  const at::Tensor rows = output.reshape({-1, output.size(-1)});
  return at::isReducedFloatingType(rows.scalar_type()) ? rows.to(at::kFloat) : rows;
}

/// What the loss is multiplied by, so that it and its gradient carry share and mean alike.
double factor(const LossConfig& config, double share, std::int64_t terms) {
  return config.reduction == Reduction::mean ? share / static_cast<double>(terms) : share;
}

/// Shape and dtype of `tensor`, and next to no memory.
at::Tensor like(const at::Tensor& tensor) { return at::empty({1}, tensor.options()).expand(tensor.sizes()); }

}  // namespace

// Kept: cross entropies the log-probabilities and targets, mse the difference; both the factor, and the
// output's own shape and dtype (an empty tensor expanded, no memory).
LossValue Loss::forward(const at::Tensor& output, const at::Tensor& targets, double share, Kept* kept,
                        bool count_correct) const {
  LossValue value;
  if (config_.type == LossKind::mse) {
    STAGECRAFT_CHECK(output.numel() == targets.numel(), "mse compares output and targets of one size");
    at::Tensor difference = output - targets.view(output.sizes());
    const double scale = factor(config_, share, output.numel());
    value.loss = difference.square().sum(at::kDouble).mul_(scale);
    if (count_correct) value.correct = at::zeros_like(value.loss);
    if (kept != nullptr) {
      kept->for_input = {std::move(difference), at::scalar_tensor(2 * scale, at::kDouble), like(output)};
    }
    return value;
  }
  const at::Tensor logits = logit_rows(output);
  const at::Tensor classes = targets.reshape({-1, 1});
  STAGECRAFT_CHECK(logits.size(0) == classes.size(0), "one target for every row of logits");
  at::Tensor log_probabilities = at::_log_softmax(logits, 1, false);
  const double scale = factor(config_, share, classes.size(0));
  value.loss = log_probabilities.gather(1, classes).sum(at::kDouble).mul_(-scale);
  if (count_correct) value.correct = logits.argmax(1, true).eq(classes).sum(at::kDouble);
  if (kept != nullptr) {
    kept->for_input = {std::move(log_probabilities), classes, at::scalar_tensor(scale, at::kDouble),
                       like(output)};
  }
  return value;
}

at::Tensor Loss::backward(Kept& kept, double scale) const {
  const Tensors taken = std::exchange(kept.for_input, {});
  if (config_.type == LossKind::mse) {
    return taken.at(0).mul(taken.at(1).item<double>() * scale).to(taken.at(2).scalar_type());
  }
  // (softmax - one at the target) * scale, in the memory of the log-probabilities: they are ours alone.
  at::Tensor gradient = taken.at(0);
  scale *= taken.at(2).item<double>();
  gradient.exp_().mul_(scale);
  gradient.scatter_add_(1, taken.at(1), at::full({1, 1}, -scale, gradient.options()).expand_as(taken.at(1)));
  return gradient.view(taken.at(3).sizes()).to(taken.at(3).scalar_type());
}

}  // namespace stagecraft
