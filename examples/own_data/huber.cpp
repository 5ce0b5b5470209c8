#include "huber.h"

#include <ATen/ATen.h>

namespace {

class Huber final : public stagecraft::Loss {
 public:
  Huber(stagecraft::Reduction reduction, double delta) : Loss(reduction), delta_(delta) {}

  stagecraft::LossValue forward(const at::Tensor& output, const stagecraft::LossData& data, double share,
                                stagecraft::Kept* kept, bool) const override {
    const at::Tensor expected = data.targets.view(output.sizes());
    const double scale = factor(share, output.numel());
    if (kept != nullptr) kept->for_input = {output - expected, at::scalar_tensor(scale, at::kDouble)};
    return {at::huber_loss(output, expected, at::Reduction::Sum, delta_).to(at::kDouble) * scale, {}};
  }

  at::Tensor backward(stagecraft::Kept& kept, double scale) const override {
    const auto [difference, share] = stagecraft::functional::take<2>(kept.for_input);
    return difference.clamp(-delta_, delta_) * (share.item<double>() * scale);
  }

  stagecraft::Targets targets() const override { return stagecraft::Targets::values; }
  std::string misfit(const std::vector<std::int64_t>& shape,
                     const stagecraft::SampleSpec& sample) const override {
    return shape == std::vector{sample.classes} ? "" : "[" + std::to_string(sample.classes) + "]";
  }

 private:
  double delta_;
};

}  // namespace

void describe(stagecraft::Fields& f, HuberSettings& s) {
  f.optional("delta", s.delta, "where it turns linear", stagecraft::json::above(0));
}

std::shared_ptr<const stagecraft::Loss> make_huber(const HuberSettings& s, stagecraft::Reduction reduction) {
  return std::make_shared<Huber>(reduction, s.delta);
}
