#include "models/model.h"

#include "base/json.h"
#include "test/support/built_in.h"
#include "test/support/catch.h"
#include "test/support/gradient_check.h"

#include <ATen/ATen.h>

using namespace stagecraft;
using Catch::Matchers::ContainsSubstring;

namespace {

const InputPlace kPlace{"run.json", "/model"};
const SampleSpec kVector{{12}, at::kFloat, 3};
const SampleSpec kImage{{1, 8, 8}, at::kFloat, 10};
const SampleSpec kTokens{{6}, at::kLong, 20};

Model build(const std::string& json, const SampleSpec& sample, at::ScalarType dtype = at::kFloat) {
  ModelConfig config;
  json::read_value(json::parse_text(json, "run.json"), kPlace, config, json::Range{});
  return build_model(config, sample, dtype, kPlace);
}

std::string refusal(const std::string& json, const SampleSpec& sample) {
  try {
    (void)build(json, sample);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<std::string> names(const Model& model) {
  std::vector<std::string> names;
  for (const LayerPtr& layer : model.layers) names.push_back(layer->name());
  return names;
}

}  // namespace

TEST_CASE("mlp: layers, boundaries and count", "[model]") {
  const Model model = build(R"({"family": "mlp", "hidden": [8, 5], "dropout": 0.1})", kVector);
  CHECK(names(model) == std::vector<std::string>{"hidden0.linear", "hidden0.relu", "hidden0.dropout",
                                                 "hidden1.linear", "hidden1.relu", "hidden1.dropout",
                                                 "output"});
  CHECK(model.name == "mlp 8-5");
  CHECK(model.parameter_count() == 12 * 8 + 8 + 8 * 5 + 5 + 5 * 3 + 3);
  const std::vector<BoundarySpec> specs = boundaries(model, 4);
  REQUIRE(specs.size() == 8);
  CHECK(specs.front().shape == std::vector<std::int64_t>{4, 12});
  CHECK(specs[1].shape == std::vector<std::int64_t>{4, 8});
  CHECK(specs.back().shape == std::vector<std::int64_t>{4, 3});
  CHECK(specs.back().bytes() == 48);
  CHECK(names(build(R"({"family": "mlp", "hidden": []})", kImage)) ==
        std::vector<std::string>{"flatten", "output"});
}

TEST_CASE("boundaries: tokens stay tokens, numbers take the model's dtype", "[model]") {
  const std::string gpt = R"({"family": "gpt", "blocks": 1, "width": 8, "heads": 2})";
  CHECK(boundaries(build(gpt, kTokens, at::kDouble), 2)[0].dtype == at::kLong);
  CHECK(boundaries(build(gpt, kTokens, at::kDouble), 2)[1].bytes() == 2 * 6 * 8 * 8);
  CHECK(boundaries(build(R"({"family": "mlp"})", kVector, at::kBFloat16), 2)[0].dtype == at::kBFloat16);
}

TEST_CASE("sequential: names, and what does not fit together", "[model]") {
  const Model model = build(R"({"family": "sequential", "layers": [
      {"type": "conv2d", "channels": 4}, {"type": "relu", "name": "bend"}, {"type": "flatten"},
      {"type": "linear", "features": 10}]})",
                            kImage);
  CHECK(names(model) == std::vector<std::string>{"conv2d0", "bend", "flatten2", "linear3"});
  CHECK(model.parameter_count() == 4 * 9 + 4 + 4 * 64 * 10 + 10);

  CHECK_THAT(
      refusal(R"({"family": "sequential", "layers": [{"type": "conv2d", "channels": 4}, {"type": "linear",
      "features": 10}]})",
              kImage),
      ContainsSubstring("run.json: /model/layers/1") && ContainsSubstring("\"linear1\"") &&
          ContainsSubstring("\"conv2d0\"") && ContainsSubstring("[4, 8, 8]"));
  CHECK_THAT(refusal(R"({"family": "sequential", "layers": [{"type": "relu", "name": "a"}, {"type": "gelu",
      "name": "a"}]})",
                     kVector),
             ContainsSubstring("/model/layers/1/name") && ContainsSubstring("\"a\""));
  CHECK_THAT(refusal(R"({"family": "sequential", "layers": [{"type": "linear", "features": 2}]})", kTokens),
             ContainsSubstring("embedding"));
}

TEST_CASE("families refuse samples they cannot take", "[model]") {
  CHECK_THAT(refusal(R"({"family": "gpt"})", kVector),
             ContainsSubstring("/model") && ContainsSubstring("tokens") && ContainsSubstring("[12]"));
  CHECK_THAT(refusal(R"({"family": "mlp"})", kTokens), ContainsSubstring("use gpt"));
  CHECK_THAT(refusal(R"({"family": "convnet"})", kVector), ContainsSubstring("[channels, height, width]"));
  CHECK_THAT(refusal(R"({"family": "mlp", "hidden": [4, 0]})", kVector),
             ContainsSubstring("/model/hidden/1"));
  CHECK_THAT(refusal(R"({"family": "convnet", "groups": [[4], [-1]]})", kImage),
             ContainsSubstring("/model/groups/1/0"));
  CHECK_THAT(refusal(R"({"family": "convnet", "groups": [[2], [2], [2], [2]]})", kImage),
             ContainsSubstring("group3.pool") && ContainsSubstring("leaves no pixel"));
}

TEST_CASE("initial parameters are drawn by name, not by order", "[model]") {
  const Model model = build(R"({"family": "mlp", "hidden": [8, 8]})", kVector);
  const Tensors last = initial_parameters(model, 4, 3);
  const Tensors first = initial_parameters(model, 0, 3);
  const Tensors again = initial_parameters(model, 4, 3);
  for (std::size_t i = 0; i < last.size(); ++i) CHECK(at::equal(last[i], again[i]));
  CHECK_FALSE(at::equal(last[0], initial_parameters(model, 4, 4)[0]));
  // Layers 2 and 4 and their biases have one distribution, so only the stream tells them apart.
  const Tensors middle = initial_parameters(model, 2, 3);
  const at::Tensor beginning = middle[0].flatten().slice(0, 0, 3);
  CHECK_FALSE(at::equal(beginning, last[0].flatten().slice(0, 0, 3)));
  CHECK_FALSE(at::equal(beginning, middle[1].slice(0, 0, 3)));
  CHECK(first[0].abs().max().item<double>() <= 1 / std::sqrt(12.0));
}

TEST_CASE("a model's fingerprint tells sizes, settings, samples and precision apart", "[model]") {
  const auto print = [](const std::string& json, const SampleSpec& sample,
                        at::ScalarType dtype = at::kFloat) { return build(json, sample, dtype).fingerprint; };
  const std::string mlp = R"({"family": "mlp", "hidden": [8]})";
  CHECK(print(mlp, kVector) == print(mlp, kVector));
  CHECK(print(mlp, kVector) != print(R"({"family": "mlp", "hidden": [9]})", kVector));
  CHECK(print(mlp, kVector) != print(mlp, {{12}, at::kFloat, 4}));
  CHECK(print(mlp, kVector) != print(mlp, kVector, at::kDouble));
  CHECK(print(R"({"family": "gpt", "width": 8, "heads": 2})", kTokens) !=
        print(R"({"family": "gpt", "width": 8, "heads": 4})", kTokens));
}

TEST_CASE("mlp: every gradient is autograd's", "[model]") {
  at::manual_seed(1);
  const Model model = build(R"({"family": "mlp", "hidden": [8, 5]})", {{3, 4}, at::kFloat, 3}, at::kDouble);
  test::check_model(model, *LossConfig{MeanSquaredError{}}.make(), at::randn({4, 3, 4}, at::kDouble),
                    at::randn({4, 3}, at::kDouble),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::mse_loss(x, y); });
}

TEST_CASE("multiply-adds are those of the matrix products", "[model]") {
  // 12 x 8, 8 x 3
  CHECK(build(R"({"family": "mlp", "hidden": [8]})", kVector).multiply_adds() == 12 * 8 + 8 * 3);
  // 5 kernels of 3 x 3 over 8 x 8 pixels with padding; what is left of them, 5 x 4 x 4, into 10 classes
  CHECK(build(R"({"family": "convnet", "groups": [[5]], "classifier": []})", kImage).multiply_adds() ==
        5 * 9 * 64 + 5 * 16 * 10);
  // A block: q, k, v and projection, scores and mixing, two products of the feed-forward; then the head.
  const std::int64_t t = 6, w = 8, h = 32, classes = 20;
  CHECK(build(R"({"family": "gpt", "blocks": 2, "width": 8, "heads": 2})", kTokens).multiply_adds() ==
        2 * (4 * t * w * w + 2 * t * t * w + 2 * t * w * h) + t * w * classes);
}

TEST_CASE("sizes beyond any machine are refused before anything is made of them", "[model]") {
  CHECK_THAT(refusal(R"({"family": "gpt", "blocks": 1000000000, "width": 8, "heads": 1})", kTokens),
             ContainsSubstring("run.json: /model/blocks: 1000000000 blocks are more than the 50000 layers"));
  CHECK_THAT(refusal(R"({"family": "gpt", "blocks": 1, "width": 9000000000000000000, "heads": 1})", kTokens),
             ContainsSubstring("/model/width: expected a number from 1 to"));
  CHECK_THAT(refusal(R"({"family": "mlp", "hidden": [9000000000000000000]})", kVector),
             ContainsSubstring("/model/hidden/0: expected a number from 1 to"));
  CHECK_THAT(refusal(R"({"family": "mlp", "hidden": [1000000000, 1000000000]})", kVector),
             ContainsSubstring("layer \"hidden1.linear\": the parameters up to here take") &&
                 ContainsSubstring("than any machine has"));
  CHECK_THAT(refusal(R"({"family": "mlp", "hidden": [100000000000, 100000000000]})", kVector),
             ContainsSubstring("layer \"hidden1.linear\": Storage size calculation overflowed"));
  const SampleSpec huge{{1'000'000'000, 1'000'000'000, 1'000'000'000}, at::kFloat, 3};
  CHECK_THAT(refusal(R"({"family": "mlp"})", huge),
             ContainsSubstring("run.json: /data: samples of [1000000000, ") &&
                 ContainsSubstring("Storage size calculation overflowed"));
}

TEST_CASE("a model of very many parameters costs nothing to look at", "[model]") {
  const Model model =
      build(R"({"family": "mlp", "hidden": [1000000]})", SampleSpec{{1'000'000}, at::kFloat, 3});
  CHECK(parameter_bytes(model, 0) == Bytes{4 * (1'000'000'000'000 + 1'000'000)});
  CHECK(parameter_bytes(model, 1) == Bytes{0});
  CHECK(boundaries(model, 1'000'000).back().bytes() == 12'000'000);
  CHECK_THROWS_WITH(boundaries(model, std::int64_t{1} << 60U),
                    ContainsSubstring("the input with micro-batches of 1152921504606846976 samples"));
}
