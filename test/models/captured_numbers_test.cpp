// Values without samples, or without elements, that go on from one captured layer to the next.

#include "base/json.h"
#include "models/captured/captured_layer.h"
#include "models/model.h"
#include "test/models/captured_folder.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/headeronly/version.h>

namespace stagecraft::test::captured_number_cases {
namespace {

/// Makes the sum of all its input, and none of its columns.
constexpr const char* kFirst = R"({"format": 2, "parameters": [], "buffers": [], "constants": [],
  "inputs": ["f32[b,8]"], "outputs": ["f32[]", "f32[b,0]", "f32[b,8]"],
  "forward": {"steps": [["aten::sum", ["%0 f32[]"], ["in0", null]],
                        ["aten::slice.Tensor", ["%1 f32[b,0]"], ["in0", 1, 0, 0, 1]]],
    "outputs": ["%0", "%1", "in0"], "buffers": [], "keep_input": [], "keep_weight": []},
  "backward_input": {"steps": [["aten::expand", ["%2 f32[b,8]"], ["g0", [{"size": [1, 0]}, 8], false]],
                               ["aten::add.Tensor", ["%3 f32[b,8]"], ["%2", "g2", 1]]],
    "outputs": ["%3"], "keep_weight": []},
  "backward_weight": {"steps": [], "gradients": []},
  "evaluate": {"steps": [["aten::sum", ["%0 f32[]"], ["in0", null]],
                         ["aten::slice.Tensor", ["%1 f32[b,0]"], ["in0", 1, 0, 0, 1]]], "outputs": ["%0", "%1", "in0"]},
  "multiply_adds": 5})";
/// Multiplies the input with the number.
constexpr const char* kSecond = R"({"format": 2, "parameters": [], "buffers": [], "constants": [],
  "inputs": ["f32[]", "f32[b,0]", "f32[b,8]"], "outputs": ["f32[b,8]"],
  "forward": {"steps": [["aten::cat", ["%0 f32[b,8]"], [["in1", "in2"], 1]],
                        ["aten::mul.Tensor", ["%1 f32[b,8]"], ["%0", "in0"]]],
    "outputs": ["%1"], "buffers": [], "keep_input": ["in0", "in1", "in2"], "keep_weight": []},
  "backward_input": {"steps": [["aten::mul.Tensor", ["%2 f32[b,8]"], ["g0", "in2"]],
                               ["aten::sum", ["%3 f32[]"], ["%2", null]],
                               ["aten::mul.Tensor", ["%4 f32[b,8]"], ["g0", "in0"]]],
    "outputs": ["%3", null, "%4"], "keep_weight": []},
  "backward_weight": {"steps": [], "gradients": []},
  "evaluate": {"steps": [["aten::mul.Tensor", ["%0 f32[b,8]"], ["in2", "in0"]]], "outputs": ["%0"]},
  "multiply_adds": 7})";

std::string folder_with_numbers(const ScratchFolder& folder) {
  make_folder(folder.path("model/graphs"));
  Json manifest = Json::parse(R"({"format": 2, "name": "numbers", "sizes": [2, 3],
    "input": "f32[b,8]", "output": "f32[b,8]", "weights": {},
    "layers": [
      {"name": "first", "parameters": [], "buffers": [], "constants": [], "in": ["input"], "out": ["sum", "none", "x"]},
      {"name": "second", "parameters": [], "buffers": [], "constants": [], "in": ["sum", "none", "x"], "out": ["y"]}]})");
  manifest["torch"] = TORCH_VERSION;
  const char* const graphs[] = {kFirst, kSecond};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string hash = captured::graph_hash(graphs[i]);
    (void)folder.write("model/graphs/" + hash + ".json", graphs[i]);
    manifest["layers"][i]["graph"] = hash;
  }
  (void)folder.write("model/manifest.json", manifest.dump());
  return folder.path("model");
}

}  // namespace

TEST_CASE("a number, and a tensor of nothing, go on between layers", "[captured]") {
  const c10::InferenceMode as_in_a_run;
  const ScratchFolder folder;
  const InputPlace place{"run.json", "/model"};
  ModelConfig config;
  json::read_value(Json{{"family", "captured"}, {"path", folder_with_numbers(folder)}}, place, config,
                   json::Range{});
  const Model model = build_model(config, {{8}, at::kFloat, 5, Targets::classes, {}}, {}, place);
  CHECK(model.multiply_adds() == 12);
  const std::vector<BoundarySpec> tensors = boundaries(model, 4);
  REQUIRE(tensors[1].values.size() == 3);
  CHECK(tensors[1].values[0].shape.empty());
  CHECK(tensors[1].values[0].of_one_sample().empty());
  CHECK(tensors[1].values[1].bytes() == 0);
  CHECK(tensors[1].values[2].of_one_sample() == std::vector<std::int64_t>{8});
  for (std::size_t i = 0; i < 2; ++i) CHECK(model.layers[i]->facts().estimate);

  const at::Tensor x = at::rand({4, 8});
  Kept kept;
  const Context context;
  Tensors buffers;
  const Weights none{{}, buffers};
  const Bundle between = model.layers[0]->forward_bundle(none, {x}, context, &kept);
  const Bundle sent = unpacked(tensors[1], packed(between));
  CHECK(sent[0].equal(x.sum()));
  CHECK(sent[1].sizes() == std::vector<std::int64_t>{4, 0});
  CHECK(model.layers[1]->forward_bundle(none, sent, context, &kept)[0].equal(x * x.sum()));
}

}  // namespace stagecraft::test::captured_number_cases
