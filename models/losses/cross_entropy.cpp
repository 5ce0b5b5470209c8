#include "models/losses/cross_entropy.h"

#include "base/error.h"
#include "models/losses/loss_factor.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <utility>

namespace stagecraft {
namespace {

/// Logits as [units, classes], in at least single precision.
at::Tensor logit_rows(const at::Tensor& output) {
  const at::Tensor rows = output.reshape({-1, output.size(-1)});
  return at::isReducedFloatingType(rows.scalar_type()) ? rows.to(at::kFloat) : rows;
}

/// Kept: the log-probabilities, the targets, the weights, and the output's own shape and dtype (one element,
/// expanded: next to no memory).
class CrossEntropyLoss final : public Loss {
 public:
  CrossEntropyLoss(Reduction reduction, Targets targets) : Loss(reduction), targets_(targets) {}

  LossValue forward(const at::Tensor& output, const LossData& data, double share, Kept* kept,
                    bool count_correct) const override {
    const at::Tensor logits = logit_rows(output);
    const at::Tensor classes = data.targets.reshape({-1, 1});
    STAGECRAFT_CHECK(logits.size(0) == classes.size(0), "one target for every row of logits");
    at::Tensor log_probabilities = at::_log_softmax(logits, 1, false);
    LossValue value;
    value.loss = log_probabilities.gather(1, classes).sum(at::kDouble);
    (-factor(share_in(data.weights, share), classes.size(0))).multiply(value.loss);
    if (count_correct) value.correct = logits.argmax(1, true).eq(classes).sum(at::kDouble);
    if (kept != nullptr) {
      kept->for_input = {std::move(log_probabilities), classes, keep_weights(data.weights, share),
                         at::empty({1}, output.options()).expand(output.sizes())};
    }
    return value;
  }

  at::Tensor backward(Kept& kept, double scale) const override {
    const Tensors taken = std::exchange(kept.for_input, {});
    // (softmax - one at the target) * scale, in the memory of the log-probabilities: they are ours alone.
    at::Tensor gradient = taken.at(0).exp_();
    const at::Tensor& classes = taken.at(1);
    const LossFactor whole =
        factor(kept_share(taken.at(2)), classes.size(0)) * kept_scale(taken.at(2), scale);
    whole.multiply(gradient);
    gradient.scatter_add_(1, classes, (-whole).as(gradient.options()).view({1, 1}).expand_as(classes));
    return gradient.view(taken.at(3).sizes()).to(taken.at(3).scalar_type());
  }

  bool reads_weights() const override { return true; }
  std::vector<NumberCheck> number_checks(const SampleSpec& sample) const override {
    return {{.end = sample.classes, .reader = fmt::format("a loss over {} classes", sample.classes)}};
  }
  Targets targets() const override { return targets_; }
  bool has_accuracy() const override { return true; }
  std::string misfit(const std::vector<std::int64_t>& shape, const SampleSpec& sample) const override {
    const bool tokens = targets_ == Targets::tokens;
    if (shape.size() == (tokens ? 2 : 1) && (!tokens || shape[0] == sample.shape.front()) &&
        shape.back() >= sample.classes) {
      return "";
    }
    return tokens ? fmt::format("[{} tokens, {} classes]", sample.shape.front(), sample.classes)
                  : fmt::format("[classes], {} of them", sample.classes);
  }

 private:
  Targets targets_;
};

}  // namespace

void describe(Fields&, CrossEntropy&) {}
void describe(Fields&, TokenCrossEntropy&) {}

std::shared_ptr<const Loss> make_loss(const CrossEntropy&, Reduction reduction) {
  return std::make_shared<CrossEntropyLoss>(reduction, Targets::classes);
}
std::shared_ptr<const Loss> make_loss(const TokenCrossEntropy&, Reduction reduction) {
  return std::make_shared<CrossEntropyLoss>(reduction, Targets::tokens);
}

}  // namespace stagecraft
