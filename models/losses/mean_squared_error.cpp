#include "models/losses/mean_squared_error.h"

#include "base/error.h"
#include "models/losses/loss_factor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <utility>

namespace stagecraft {
namespace {

/// Kept: the difference, the weights, and the output's own dtype (one element).
class MeanSquaredErrorLoss final : public Loss {
 public:
  using Loss::Loss;

  LossValue forward(const at::Tensor& output, const LossData& data, double share, Kept* kept,
                    bool count_correct) const override {
    STAGECRAFT_CHECK(output.numel() == data.targets.numel(), "mse compares output and targets of one size");
    at::Tensor difference = output.sub(data.targets.view(output.sizes()));
    LossValue value;
    value.loss = difference.square().sum(at::kDouble);
    factor(share_in(data.weights, share), output.numel()).multiply(value.loss);
    if (count_correct) value.correct = at::zeros_like(value.loss);
    if (kept != nullptr) {
      kept->for_input = {std::move(difference), keep_weights(data.weights, share),
                         at::empty({1}, output.options())};
    }
    return value;
  }

  at::Tensor backward(Kept& kept, double scale) const override {
    const Tensors taken = std::exchange(kept.for_input, {});
    const at::Tensor& difference = taken.at(0);
    const LossFactor whole =
        factor(kept_share(taken.at(1)), difference.numel()) * LossFactor(2) * kept_scale(taken.at(1), scale);
    return whole.times(difference).to(taken.at(2).scalar_type());
  }

  bool reads_weights() const override { return true; }

  Targets targets() const override { return Targets::values; }
  std::vector<NumberCheck> number_checks(const SampleSpec&) const override {
    return {{.finite = true, .reader = "a squared error"}};
  }
  std::string misfit(const std::vector<std::int64_t>& shape, const SampleSpec& sample) const override {
    return c10::multiply_integers(shape) == sample.classes ? "" : fmt::format("{} numbers", sample.classes);
  }
};

}  // namespace

void describe(Fields&, MeanSquaredError&) {}

std::shared_ptr<const Loss> make_loss(const MeanSquaredError&, Reduction reduction) {
  return std::make_shared<MeanSquaredErrorLoss>(reduction);
}

}  // namespace stagecraft
