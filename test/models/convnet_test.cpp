#include "models/model.h"
#include "test/support/built_in.h"
#include "test/support/catch.h"
#include "test/support/gradient_check.h"

#include <ATen/ATen.h>

using namespace stagecraft;

namespace {

Model convnet(const ConvnetConfig& config, at::ScalarType dtype) {
  return build_model({config}, {{2, 8, 8}, at::kFloat, 5}, dtype, {});
}

}  // namespace

TEST_CASE("convnet: layers and boundaries", "[convnet]") {
  const Model model = convnet({{{4, 4}, {6}}, {7}, 0.2}, at::kFloat);
  std::vector<std::string> names;
  for (const LayerPtr& layer : model.layers) names.push_back(layer->name());
  CHECK(names == std::vector<std::string>{"group0.conv0", "group0.norm0", "group0.relu0", "group0.conv1",
                                          "group0.norm1", "group0.relu1", "group0.pool", "group1.conv0",
                                          "group1.norm0", "group1.relu0", "group1.pool", "flatten",
                                          "classifier0.dropout", "classifier0.linear", "classifier0.relu",
                                          "output.dropout", "output"});
  const std::vector<BoundarySpec> specs = boundaries(model, 3);
  CHECK(specs[7].shape == std::vector<std::int64_t>{3, 4, 4, 4});
  CHECK(specs[12].shape == std::vector<std::int64_t>{3, 24});
  CHECK(specs.back().shape == std::vector<std::int64_t>{3, 5});
  CHECK(initial_buffers(model, 1)[1].eq(1).all().item<bool>());
}

TEST_CASE("convnet: every gradient is autograd's", "[convnet]") {
  at::manual_seed(1);
  test::check_model(convnet({{{4, 3}, {5}}, {6}, 0}, at::kDouble), *LossConfig{CrossEntropy{}}.make(),
                    at::randn({4, 2, 8, 8}, at::kDouble), at::randint(0, 5, {4}, at::kLong),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::cross_entropy_loss(x, y); });
}
