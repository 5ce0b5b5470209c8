#include "models/check/gradient_compare.h"
#include "models/check/layer_check.h"
#include "models/check/watch.h"
#include "models/losses/run_loss.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <cmath>

namespace stagecraft {
namespace {

class LossTrier {
 public:
  LossTrier(const Loss& loss, const LossTrial& trial) : loss_(loss), trial_(trial) {}

  LayerChecked run() {
    const c10::InferenceMode normal(false);
    const c10::NoGradGuard no_grad;
    LayerChecked checked;
    output_ = trial_.output.clone();
    if (trial_.draws) {
      output_ = at::randn_like(trial_.output);
      try {
        if (!std::isfinite(value(output_, 1, nullptr))) output_ = trial_.output.clone();
      } catch (...) {
        output_ = trial_.output.clone();
      }
    }
    const bool runs = attempt(checked[Aspect::output], [&] { return number(); });
    if (!runs) return checked;
    attempt(checked[Aspect::in_place], [&] { return in_place(); });
    attempt(checked[Aspect::deterministic], [&] { return deterministic(); });
    attempt(checked[Aspect::micro_batches], [&] { return micro_batches(); });
    if (!trial_.draws) {
      checked[Aspect::input_gradient] = {Checked::Result::passed, "as captured"};
    } else {
      attempt(checked[Aspect::input_gradient], [&] { return gradient(); });
    }
    return checked;
  }

 private:
  LossValue values(const at::Tensor& output, double share, Kept* kept) const {
    const LossData data = loss_.reads_targets() ? LossData(trial_.targets) : LossData(trial_.fields);
    return run_loss(loss_, output, data, share, kept, /*count_correct=*/false);
  }
  at::Tensor forward(const at::Tensor& output, double share, Kept* kept) const {
    return values(output, share, kept).loss;
  }
  double value(const at::Tensor& output, double share, Kept* kept) const {
    return forward(output, share, kept).item<double>();
  }
  at::Tensor backward(const at::Tensor& output, double share, double scale) const {
    Kept kept;
    (void)forward(output, share, &kept);
    at::Tensor gradient = run_loss_backward(loss_, kept, scale);
    require(kept.for_input.empty() && kept.for_weight.empty(), "backward leaves tensors kept");
    return gradient;
  }

  std::string number() {
    const at::Tensor loss = forward(output_.clone(), 1, nullptr);
    require(loss.is_floating_point(), fmt::format("the loss is of {}", c10::toString(loss.scalar_type())));
    return "";
  }

  std::string in_place() {
    const at::Tensor output = output_.clone();
    Watch watch;
    watch.add("the model's output", output);
    watch.add("the targets", trial_.targets);
    for (const auto& [name, field] : trial_.fields) watch.add(fmt::format("field \"{}\"", name), field);
    Kept kept;
    (void)forward(output, 1, &kept);
    watch.require_untouched("forward");
    (void)run_loss_backward(loss_, kept);
    watch.require_untouched("backward");
    return "";
  }

  std::string deterministic() {
    const double first = value(output_.clone(), 1, nullptr);
    Kept kept;
    require(value(output_.clone(), 1, &kept) == first,
            "the forward gives another loss where something is kept");
    (void)value(output_ * 2, 1, nullptr);
    require(value(output_.clone(), 1, nullptr) == first, "the forward gives another loss on a second call");
    require(same_bits(backward(output_.clone(), 1, 1), backward(output_.clone(), 1, 1)),
            "backward gives other bits on a second call");
    return "";
  }

  /// The one scaling rule (loss.h): micro-batches add up by their shares.
  std::string micro_batches() {
    const at::Tensor whole = backward(output_.clone(), 1, 1);
    require(whole.sizes() == output_.sizes() && whole.scalar_type() == output_.scalar_type(),
            "the gradient has another shape or type than the model's output");
    Kept first, second;
    (void)forward(output_.clone(), 1, &first);
    (void)forward(output_ * 2, 1, &second);
    require(same_bits(run_loss_backward(loss_, first), whole),
            "backward gives other bits while another micro-batch is under way");
    const double size = whole.abs().max().item<double>();
    const auto scales = [&](double share, double scale) {
      const at::Tensor part = backward(output_.clone(), share, scale);
      return (part - whole * (share * scale)).abs().max().item<double>() <= 1e-2 * size * share * scale;
    };
    const double loss = value(output_.clone(), 1, nullptr);
    const double half = value(output_.clone(), 0.5, nullptr);
    require(std::abs(half - loss / 2) <= 1e-4 * std::abs(loss),
            "the loss does not follow its share of the mini-batch: factor(share, terms) has it");
    if (!loss_.terms().empty()) {
      const at::Tensor terms = values(output_.clone(), 1, nullptr).terms;
      const at::Tensor of_half = values(output_.clone(), 0.5, nullptr).terms;
      require((of_half - terms / 2)
                  .abs()
                  .le(terms.abs() * 1e-4)
                  .logical_or(terms.isfinite().logical_not())
                  .all()
                  .item<bool>(),
              "its terms do not follow their share of the mini-batch, as the loss does");
    }
    require(scales(0.5, 1), "the gradient does not follow the share of the mini-batch");
    require(scales(1, 4), "the gradient does not follow `scale`, which loss scaling sets");
    if (loss_.reads_weights()) from_memory(0.3, 5);
    return "";
  }

  /// Other numbers are given beside: only those in memory may be used.
  void from_memory(double share, double scale) {
    LossData data = loss_.reads_targets() ? LossData(trial_.targets) : LossData(trial_.fields);
    data.weights = at::tensor({share, scale}, at::kDouble);
    Kept kept;
    const at::Tensor loss = run_loss(loss_, output_.clone(), data, 1, &kept, /*count_correct=*/false).loss;
    require(same_bits(loss, forward(output_.clone(), share, nullptr)),
            "the loss is another one where its share lies in memory (reads_weights)");
    require(same_bits(run_loss_backward(loss_, kept, 1), backward(output_.clone(), share, scale)),
            "the gradient is another one where share and scale lie in memory (reads_weights)");
    require(kept.for_input.empty() && kept.for_weight.empty(), "backward leaves tensors kept");
  }

  std::string gradient() {
    at::Tensor output = output_.to(at::kDouble);
    std::string in;
    try {
      (void)value(output, 1, nullptr);
    } catch (...) {
      output = output_.to(at::kFloat);
      in = ", in float32";
    }
    const GradientVerdict verdict =
        compare_gradients([&](const Tensors& of) { return forward(of[0], 1, nullptr); }, {output},
                          {backward(output.clone(), 1, 1)})
            .front();
    require(verdict.holds, verdict.said);
    return verdict.said + in;
  }

  const Loss& loss_;
  const LossTrial& trial_;
  at::Tensor output_;
};

}  // namespace

LayerChecked check_loss(const Loss& loss, const LossTrial& trial) { return LossTrier(loss, trial).run(); }

}  // namespace stagecraft
