#include "models/model.h"
#include "test/support/built_in.h"
#include "test/support/catch.h"
#include "test/support/gradient_check.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

using namespace stagecraft;

namespace {

Model gpt(const GptConfig& config, at::ScalarType dtype) {
  return build_model({config}, {{6}, at::kLong, 20}, dtype, {});
}

}  // namespace

TEST_CASE("gpt: layers and boundaries", "[gpt]") {
  const Model model = gpt({2, 8, 2, 0, 0.1, 0.1}, at::kFloat);
  std::vector<std::string> names;
  for (const LayerPtr& layer : model.layers) names.push_back(layer->name());
  CHECK(names == std::vector<std::string>{"embedding", "block0.attention", "block0.feed_forward",
                                          "block1.attention", "block1.feed_forward", "norm", "head"});
  CHECK(model.name == "gpt 2x8");
  // 12 width^2 + 13 width a block.
  CHECK(model.parameter_count() == 20 * 8 + 6 * 8 + 2 * (12 * 64 + 13 * 8) + 2 * 8 + 8 * 20);
  const std::vector<BoundarySpec> specs = boundaries(model, 3);
  CHECK(specs[0].shape == std::vector<std::int64_t>{3, 6});
  for (std::size_t i = 1; i + 1 < specs.size(); ++i)
    CHECK(specs[i].shape == std::vector<std::int64_t>{3, 6, 8});
  CHECK(specs.back().shape == std::vector<std::int64_t>{3, 6, 20});
}

TEST_CASE("gpt: initial values are GPT-2's", "[gpt]") {
  const Model model = gpt({4, 64, 2, 0, 0, 0}, at::kDouble);
  const auto deviation = [](const at::Tensor& t) { return t.std().item<double>(); };
  const Tensors attention = initial_parameters(model, 1, 1), feed_forward = initial_parameters(model, 2, 1);
  CHECK(attention[0].eq(1).all().item<bool>());
  CHECK(deviation(attention[2]) == Approx(0.02).epsilon(0.05));
  CHECK(attention[3].eq(0).all().item<bool>());
  CHECK(deviation(attention[4]) == Approx(0.02 / std::sqrt(8.0)).epsilon(0.05));
  CHECK(deviation(feed_forward[4]) == Approx(0.02 / std::sqrt(8.0)).epsilon(0.05));
  CHECK(deviation(initial_parameters(model, 0, 1)[0]) == Approx(0.02).epsilon(0.1));
  CHECK(deviation(initial_parameters(model, 10, 1)[0]) == Approx(0.02).epsilon(0.1));
}

TEST_CASE("gpt: every gradient is autograd's", "[gpt]") {
  at::manual_seed(1);
  test::check_model(gpt({2, 8, 2, 12, 0, 0}, at::kDouble), *LossConfig{TokenCrossEntropy{}}.make(),
                    at::randint(0, 20, {3, 6}, at::kLong), at::randint(0, 20, {3, 6}, at::kLong),
                    [](const at::Tensor& x, const at::Tensor& y) {
                      return at::cross_entropy_loss(x.reshape({-1, 20}), y.reshape({-1}));
                    });
}

TEST_CASE("gpt: the same forward twice under dropout, bit for bit", "[gpt]") {
  const Model model = gpt({1, 8, 2, 0, 0.2, 0.2}, at::kFloat);
  const c10::NoGradGuard no_grad;
  const at::Tensor tokens = at::randint(0, 20, {3, 6}, at::kLong);
  const auto run = [&](std::uint64_t micro_batch) {
    at::Tensor x = tokens;
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      const Tensors parameters = initial_parameters(model, static_cast<int>(i), 1);
      Tensors buffers;
      x = model.layers[i]->forward({parameters, buffers}, x, {Mode::train, {1, i, 9, micro_batch}}, nullptr);
    }
    return x;
  };
  CHECK(at::equal(run(0), run(0)));
  CHECK_FALSE(at::equal(run(0), run(1)));
}
