#include "models/losses/loss.h"

#include "base/error.h"
#include "models/losses/run_loss.h"
#include "test/support/built_in.h"
#include "test/support/catch.h"
#include "test/support/gradient_check.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace stagecraft;

namespace {

/// Of somebody's own: the output's sum, and whatever terms it is given.
class Termed final : public Loss {
 public:
  Termed(std::vector<std::string> names, at::Tensor terms)
      : Loss(Reduction::sum), names_(std::move(names)), terms_(std::move(terms)) {}
  LossValue forward(const at::Tensor& output, const LossData&, double, Kept*, bool) const override {
    return {.loss = output.sum(at::kDouble), .correct = {}, .terms = terms_};
  }
  at::Tensor backward(Kept&, double) const override { return {}; }
  Targets targets() const override { return Targets::none; }
  std::string misfit(const std::vector<std::int64_t>&, const SampleSpec&) const override { return ""; }
  const std::vector<std::string>& terms() const override { return names_; }

 private:
  std::vector<std::string> names_;
  at::Tensor terms_;
};

double number(const at::Tensor& tensor) { return tensor.item<double>(); }

/// Value and gradient against a reference of (output, targets) with PyTorch's own reduction.
template <class Formula>
void check(const LossConfig& config, const at::Tensor& output, const at::Tensor& targets,
           const Formula& formula) {
  const auto made = config.make();
  const Loss& loss = *made;
  for (const double share : {1.0, 0.25}) {
    INFO("share " << share);
    const at::Tensor leaf = output.clone().requires_grad_(true);
    const at::Tensor expected = formula(leaf, targets) * share;
    const Tensors gradient = test::autograd(expected, at::ones_like(expected), {leaf});
    const c10::NoGradGuard no_grad;
    const at::Tensor before = output.clone();
    Kept kept;
    const LossValue value = loss.forward(output, targets, share, &kept, true);
    CHECK(number(value.loss) == Approx(expected.template item<double>()).epsilon(1e-12));
    CHECK(number(loss.forward(output, targets, share, nullptr, false).loss) == number(value.loss));
    const at::Tensor ours = loss.backward(kept);
    CHECK(kept.for_input.empty());
    CHECK(ours.sizes() == output.sizes());
    CHECK(at::allclose(ours, gradient[0], 1e-10, 1e-12));
    CHECK(at::equal(output, before));
  }
}

}  // namespace

TEST_CASE("cross entropy", "[loss]") {
  at::manual_seed(1);
  const at::Tensor logits = at::randn({6, 5}, at::kDouble).mul_(3),
                   classes = at::randint(0, 5, {6}, at::kLong);
  const auto formula = [](std::int64_t reduction) {
    return [reduction](const at::Tensor& x, const at::Tensor& y) {
      return at::cross_entropy_loss(x, y, {}, reduction);
    };
  };
  check({CrossEntropy{}, Reduction::mean}, logits, classes, formula(at::Reduction::Mean));
  check({CrossEntropy{}, Reduction::sum}, logits, classes, formula(at::Reduction::Sum));
}

TEST_CASE("token cross entropy", "[loss]") {
  at::manual_seed(2);
  const at::Tensor logits = at::randn({2, 3, 7}, at::kDouble), tokens = at::randint(0, 7, {2, 3}, at::kLong);
  for (const bool mean : {true, false}) {
    check({TokenCrossEntropy{}, mean ? Reduction::mean : Reduction::sum}, logits, tokens,
          [&](const at::Tensor& x, const at::Tensor& y) {
            return at::cross_entropy_loss(x.reshape({6, 7}), y.reshape({6}), {},
                                          mean ? at::Reduction::Mean : at::Reduction::Sum);
          });
  }
}

TEST_CASE("mean squared error", "[loss]") {
  at::manual_seed(3);
  const at::Tensor output = at::randn({4, 3}, at::kDouble), targets = at::randn({4, 3}, at::kDouble);
  check({MeanSquaredError{}, Reduction::mean}, output, targets,
        [](const at::Tensor& x, const at::Tensor& y) { return at::mse_loss(x, y); });
  check({MeanSquaredError{}, Reduction::sum}, output, targets,
        [](const at::Tensor& x, const at::Tensor& y) { return at::mse_loss(x, y, at::Reduction::Sum); });
}

TEST_CASE("share and scale in memory give the bits of the same numbers", "[loss]") {
  const c10::NoGradGuard no_grad;
  at::manual_seed(6);
  const at::Tensor classes = at::randint(0, 7, {15}, at::kLong), tokens = classes.view({5, 3});
  int compared = 0;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor logits = at::randn({5, 3, 7}, at::kDouble).to(type);
    const at::Tensor values = at::randn({5, 3, 7}, at::kDouble).to(type);
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
      const auto same = [&](const LossConfig& config, const at::Tensor& output, const at::Tensor& targets) {
        const std::shared_ptr<const Loss> loss = config.make();
        REQUIRE(loss->reads_weights());
        for (const auto& [share, scale] :
             {std::pair{1.0, 1.0}, {1.0 / 3, 1.0}, {5.0 / 37, 65536.0}, {0.3, 1000.7}}) {
          LossData data(targets);
          data.weights = at::tensor({share, scale}, at::kDouble);
          Kept by_number, in_memory;
          const LossValue want = loss->forward(output, targets, share, &by_number, true);
          const LossValue got = loss->forward(output, data, 17, &in_memory, true);
          CHECK(at::equal(got.loss, want.loss));
          CHECK(at::equal(loss->backward(in_memory, 19), loss->backward(by_number, scale)));
          CHECK(in_memory.for_input.empty());
          ++compared;
        }
      };
      same({CrossEntropy{}, reduction}, logits.reshape({15, 7}), classes);
      same({TokenCrossEntropy{}, reduction}, logits, tokens);
      same({MeanSquaredError{}, reduction}, logits, values);
      same({MeanSquaredError{}, reduction}, logits, values.to(at::kFloat));
    }
  }
  CHECK(compared == 4 * 2 * 4 * 4);
}

TEST_CASE("micro-batches weighted by their share add up to the mini-batch", "[loss]") {
  at::manual_seed(4);
  const auto made = LossConfig{TokenCrossEntropy{}}.make();
  const Loss& loss = *made;
  const at::Tensor logits = at::randn({5, 3, 7}, at::kDouble), tokens = at::randint(0, 7, {5, 3}, at::kLong);
  Kept whole;
  const double expected = number(loss.forward(logits, tokens, 1, &whole, false).loss);
  const at::Tensor gradient = loss.backward(whole);
  double sum = 0;
  for (const auto& [first, last] :
       {std::pair{0, 2}, std::pair{2, 4}, std::pair{4, 5}}) {  // the last one is short
    const at::Tensor part = logits.slice(0, first, last), targets = tokens.slice(0, first, last);
    Kept kept;
    sum += number(loss.forward(part, targets, static_cast<double>(targets.numel()) / 15, &kept, false).loss);
    CHECK(at::allclose(loss.backward(kept), gradient.slice(0, first, last), 1e-12, 1e-14));
  }
  CHECK(sum == Approx(expected).epsilon(1e-12));
}

TEST_CASE("right predictions are counted", "[loss]") {
  const at::Tensor logits = at::eye(4), classes = at::tensor({0, 1, 3, 3}, at::kLong);
  const auto made = LossConfig{CrossEntropy{}}.make();
  const Loss& loss = *made;
  CHECK(number(loss.forward(logits, classes, 1, nullptr, true).correct) == 3);
  CHECK(!loss.forward(logits, classes, 1, nullptr, false).correct.defined());
}

TEST_CASE("a loss gives as many terms as it has names", "[loss]") {
  const at::Tensor output = at::ones({2}), two = at::ones({2}, at::kDouble);
  const auto run = [&](const std::vector<std::string>& names, const at::Tensor& terms) {
    return run_loss(Termed(names, terms), output, LossData(at::Tensor()), 1, nullptr, false);
  };
  CHECK(at::equal(run({"a", "b"}, two).terms, two));
  CHECK(!run({}, {}).terms.defined());
  CHECK(loss_numbers(Termed({"a", "b"}, two)) == 4);
  CHECK_THROWS_AS(run({"a"}, two), InternalError);
  CHECK_THROWS_AS(run({}, two), InternalError);
  CHECK_THROWS_AS(run({"a", "b"}, {}), InternalError);
  CHECK_THROWS_AS(run({"a", "b"}, two.to(at::kFloat)), InternalError);
  CHECK_THROWS_AS(run({"a", "b"}, two.view({2, 1})), InternalError);
}

TEST_CASE("low precision logits lose nothing in the sum", "[loss]") {
  at::manual_seed(5);
  const at::Tensor logits = at::randn({64, 50}).to(at::kBFloat16),
                   classes = at::randint(0, 50, {64}, at::kLong);
  const auto made = LossConfig{CrossEntropy{}}.make();
  const Loss& loss = *made;
  Kept kept;
  const double expected = number(loss.forward(logits.to(at::kDouble), classes, 1, nullptr, false).loss);
  CHECK(number(loss.forward(logits, classes, 1, &kept, false).loss) == Approx(expected).epsilon(1e-6));
  CHECK(loss.backward(kept).scalar_type() == at::kBFloat16);
}
