// Weights that several layers hold.

#include "base/error.h"
#include "models/captured/model_folder.h"
#include "models/families/captured.h"
#include "models/model.h"
#include "test/models/captured_folder.h"
#include "test/support/catch.h"
#include "test/support/padded_data.h"

#include <ATen/ATen.h>

#include <memory>
#include <utility>

namespace stagecraft::test::tie_cases {
namespace {

class Holder final : public Layer {
 public:
  Holder(std::string name, std::vector<ParameterSpec> specs)
      : Layer(std::move(name), {.type = "holder", .parameters = std::move(specs)}) {}
  at::Tensor forward(const Weights&, const at::Tensor& input, const Context&, Kept*) const override {
    return input;
  }
  at::Tensor backward_input(const Tensors&, const at::Tensor& gradient, Kept&, bool) const override {
    return gradient;
  }
};

ParameterSpec spec(const std::string& tied, std::vector<std::int64_t> shape) {
  ParameterSpec spec;
  spec.name = "weight";
  spec.shape = std::move(shape);
  spec.tied = tied;
  return spec;
}

LayerPtr layer(const std::string& name, std::vector<ParameterSpec> specs) {
  return std::make_shared<const Holder>(name, std::move(specs));
}

Model tied_model(const std::string& path) {
  const PaddedData data(8, 8);
  CapturedConfig config;
  config.path = path;
  return build_model({config}, data.sample(), Precision{}, {"test", "/model"});
}

TEST_CASE("a captured model knows its ties, counts each weight once, and starts all copies alike", "[ties]") {
  const Model model = tied_model(captured_model("tied"));
  REQUIRE(model.ties.size() == 2);
  CHECK(model.ties[0].name == "embed.weight");
  std::vector<int> layers;
  for (const Tie::Holder& holder : model.ties[0].holders) layers.push_back(holder.layer);
  CHECK(layers == std::vector{0, 4, 10});
  CHECK(model.ties[1].holders.size() == 2);
  // Nine weights of 64 numbers but for the three copies, eight of biases and embed's, the norm's two.
  CHECK(model.parameter_count() == 7 * 64 + 9 * 8 + 16);
  for (const Tie& tie : model.ties) {
    const Tie::Holder owner = tie.holders.front();
    for (const Tie::Holder& holder : tie.holders) {
      CHECK(model.owner_of(holder.layer, holder.parameter).layer == owner.layer);
      CHECK(model.owns(holder.layer, holder.parameter) == (holder.layer == owner.layer));
      CHECK(at::equal(initial_parameters(model, holder.layer, 3)[static_cast<std::size_t>(holder.parameter)],
                      initial_parameters(model, owner.layer, 3)[static_cast<std::size_t>(owner.parameter)]));
    }
  }
}

TEST_CASE("the same layers with fewer ties are another model", "[ties]") {
  const ScratchFolder folder;
  const std::string path = edited_copy(folder, "tied", {.manifest = [](Json& manifest) {
                                         manifest["layers"][10]["parameters"][0] = "blocks.0.linear.weight";
                                       }});
  CHECK(tied_model(path).fingerprint != tied_model(captured_model("tied")).fingerprint);
}

TEST_CASE("a layer names a shared weight once", "[ties]") {
  const ScratchFolder folder;
  const std::string path = edited_copy(folder, "tied", {.manifest = [](Json& manifest) {
                                         manifest["layers"][9]["parameters"][1] = "norm.weight";
                                       }});
  CHECK_THROWS_WITH(
      captured::read_model_folder(path),
      Catch::Matchers::ContainsSubstring("/layers/9/parameters/1: \"norm.weight\" is named twice"));
}

TEST_CASE("layers that hold one weight hold it once each, in one shape and with one rule", "[ties]") {
  const auto between = [](std::vector<LayerPtr> layers) { return ties_between(layers, {"test", "/model"}); };
  CHECK(between({layer("a", {spec("w", {2, 3})}), layer("b", {spec("", {2, 3})})}).empty());
  CHECK(between({layer("a", {spec("w", {2, 3})}), layer("b", {spec("w", {2, 3})})}).size() == 1);
  CHECK_THROWS_WITH(
      between({layer("a", {spec("w", {2, 3})}), layer("b", {spec("w", {3, 2})})}),
      Catch::Matchers::ContainsSubstring("layer \"b\"") && Catch::Matchers::ContainsSubstring("layer \"a\""));
  CHECK_THROWS_AS(between({layer("a", {spec("w", {2}), spec("w", {2})})}), InputError);
  ParameterSpec undecayed = spec("w", {2});
  undecayed.decays = false;
  CHECK_THROWS_AS(between({layer("a", {spec("w", {2})}), layer("b", {undecayed})}), InputError);
}

}  // namespace
}  // namespace stagecraft::test::tie_cases
