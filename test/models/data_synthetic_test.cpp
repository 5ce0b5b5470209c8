#include "models/data/dataset.h"
#include "models/data/synthetic.h"
#include "test/models/data_files.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

#include <limits>
#include <numeric>

namespace stagecraft::test {
namespace {

using Catch::Matchers::ContainsSubstring;

std::unique_ptr<Dataset> synthetic(const std::string& task, std::vector<std::int64_t> shape,
                                   std::int64_t classes, std::uint64_t seed = 1) {
  SyntheticDataConfig config;
  config.task = task;
  config.shape = std::move(shape);
  config.classes = classes;
  config.seed = seed;
  return open_dataset({config}, {"run.json", "/data"});
}

std::vector<std::int64_t> first(std::int64_t count) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

TEST_CASE("synthetic: a sample is the same in any batch, and differs by index, split and seed", "[data]") {
  for (const char* task : {"classification", "regression", "tokens"}) {
    INFO(task);
    const auto data = synthetic(task, {16}, 7);
    const at::Tensor together = data->inputs(Split::train, {5, 3});
    CHECK(at::equal(together[1], data->inputs(Split::train, {3})[0]));
    CHECK(at::equal(together, synthetic(task, {16}, 7)->inputs(Split::train, {5, 3})));
    CHECK_FALSE(at::equal(together[0], together[1]));
    CHECK_FALSE(at::equal(together, data->inputs(Split::validation, {5, 3})));
    CHECK_FALSE(at::equal(together, synthetic(task, {16}, 7, 2)->inputs(Split::train, {5, 3})));
    CHECK(data->fingerprint() == synthetic(task, {16}, 7)->fingerprint());
    CHECK(data->fingerprint() != synthetic(task, {16}, 7, 2)->fingerprint());
  }
}

TEST_CASE("synthetic: classes are told apart by the nearest mean of the training samples", "[data]") {
  const auto data = synthetic("classification", {1, 8, 8}, 10);
  REQUIRE((data->sample().shape == std::vector<std::int64_t>{1, 8, 8}));
  const at::Tensor x = data->inputs(Split::train, first(1000)).flatten(1);
  const at::Tensor y = data->targets(Split::train, first(1000));
  const at::Tensor members = at::one_hot(y, 10).to(at::kFloat);
  const at::Tensor means = members.t().mm(x) / members.sum(0).unsqueeze(1);
  const at::Tensor guess = at::cdist(data->inputs(Split::validation, first(200)).flatten(1), means).argmin(1);
  const double right =
      guess.eq(data->targets(Split::validation, first(200))).to(at::kDouble).mean().item<double>();
  CHECK(right > 0.95);
}

TEST_CASE("synthetic: the regression is linear", "[data]") {
  const auto data = synthetic("regression", {12}, 3);
  CHECK(data->sample().classes == 3);
  const at::Tensor x = data->inputs(Split::train, first(200)).to(at::kDouble);
  const at::Tensor y = data->targets(Split::train, first(200)).to(at::kDouble);
  REQUIRE(y.sizes() == at::IntArrayRef({200, 3}));
  CHECK(y.var().item<double>() == Approx(1.0 / 3).margin(0.2));
  const at::Tensor map = at::linalg_solve(x.t().mm(x), x.t().mm(y));
  const at::Tensor error = data->inputs(Split::validation, first(50)).to(at::kDouble).mm(map) -
                           data->targets(Split::validation, first(50));
  CHECK(error.abs().max().item<double>() < 1e-5);
}

TEST_CASE("synthetic: nine tokens of ten follow from the one before", "[data]") {
  const auto data = synthetic("tokens", {64}, 50);
  CHECK(data->sample().dtype == at::kLong);
  CHECK(data->sample().classes == 50);
  const at::Tensor x = data->inputs(Split::train, first(200));
  const at::Tensor y = data->targets(Split::train, first(200));
  CHECK(at::equal(x.slice(1, 1), y.slice(1, 0, 63)));
  CHECK(x.min().item<std::int64_t>() >= 0);
  CHECK(x.max().item<std::int64_t>() < 50);
  // The most frequent successor of each token, found in training, predicts validation.
  const at::Tensor counts = at::bincount((x * 50 + y).flatten(), {}, 2500).view({50, 50}).argmax(1);
  const at::Tensor guess = counts.index({data->inputs(Split::validation, first(100))});
  const double right =
      guess.eq(data->targets(Split::validation, first(100))).to(at::kDouble).mean().item<double>();
  CHECK(right > 0.87);
  CHECK(right < 0.95);
}

TEST_CASE("synthetic: impossible shapes are refused", "[data]") {
  CHECK_THROWS_WITH(synthetic("classification", {3, 0}, 2),
                    ContainsSubstring("run.json: /data/shape: [3, 0] has an extent below 1"));
  CHECK_THROWS_WITH(synthetic("tokens", {3, 4}, 2),
                    ContainsSubstring("/data/shape: [3, 4]: token samples have one"));
  for (const std::int64_t extent : {std::int64_t{1} << 40, std::numeric_limits<std::int64_t>::max()}) {
    CHECK_THROWS_WITH(
        synthetic("regression", {extent, extent}, 2),
        ContainsSubstring("run.json: /data/shape: [") && ContainsSubstring("expected a product of at most"));
  }
  CHECK_THROWS_WITH(synthetic("classification", {3}, std::numeric_limits<std::int64_t>::max()),
                    ContainsSubstring("times 9223372036854775807 classes"));
}

}  // namespace
}  // namespace stagecraft::test
