// What a model folder must not be.

#include "base/error.h"
#include "models/captured/model_folder.h"
#include "models/families/captured.h"
#include "models/layers/layer.h"
#include "models/model.h"
#include "test/models/captured_folder.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <filesystem>

namespace stagecraft::test::captured_refusal_cases {
namespace {

using Catch::Matchers::ContainsSubstring;

std::string refusal(const std::string& model, const Edits& edits) {
  const ScratchFolder folder;
  const std::string path = edited_copy(folder, model, edits);
  try {
    (void)captured::read_model_folder(path);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

/// Sets what a pointer names in the first graph.
std::string with_graph(const std::string& model, const std::string& pointer, const Json& value) {
  return refusal(model, {.first_graph = [&](Json& graph) { graph[Json::json_pointer(pointer)] = value; }});
}
std::string with_manifest(const std::string& model, const std::string& pointer, const Json& value) {
  return refusal(model, {.manifest = [&](Json& manifest) { manifest[Json::json_pointer(pointer)] = value; }});
}

/// What reading a graph alone is refused with, or preparing it for two samples.
std::string read(const Json& graph) {
  const ScratchFolder folder;
  const std::string bytes = graph.dump();
  const std::string hash = captured::graph_hash(bytes);
  make_folder(folder.path("graphs"));
  (void)folder.write("graphs/" + hash + ".json", bytes);
  try {
    const auto read = captured::read_graph(folder.path("."), hash);
    (void)captured::Programs(*read, 2, at::kCPU, MatrixProducts::blas);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("backwards are refused whose saved tensors would make kernels read or write elsewhere",
          "[captured_refusals]") {
  const auto changed = [&](const Json& graph, const std::string& pointer, const Json& value) {
    Json edited = graph;
    edited[Json::json_pointer(pointer)] = value;
    return read(edited);
  };
  const Json pool = Json::parse(R"({"format": 2, "parameters": [], "buffers": [], "constants": [],
    "inputs": ["f32[b,1,4,4]"], "outputs": ["f32[b,1,2,2]"],
    "forward": {"steps": [
        ["aten::max_pool2d_with_indices", ["%0 f32[b,1,2,2]", "%1 i64[b,1,2,2]"],
         ["in0", [2, 2], [2, 2], [0, 0], [1, 1], false]],
        ["aten::clone", ["%2 i64[b,1,2,2]"], ["%1", null]]],
      "outputs": ["%0"], "buffers": [], "keep_input": ["in0", "%1", "%2"], "keep_weight": []},
    "backward_input": {"steps": [
        ["aten::max_pool2d_with_indices_backward", ["%3 f32[b,1,4,4]"],
         ["g0", "in0", [2, 2], [2, 2], [0, 0], [1, 1], false, "%1"]]],
      "outputs": ["%3"], "keep_weight": []},
    "backward_weight": {"steps": [], "gradients": []},
    "evaluate": {"steps": [["aten::max_pool2d_with_indices", ["%0 f32[b,1,2,2]", null],
                            ["in0", [2, 2], [2, 2], [0, 0], [1, 1], false]]], "outputs": ["%0"]},
    "multiply_adds": 0})");
  CHECK(read(pool) == "accepted");
  CHECK_THAT(changed(pool, "/backward_input/steps/0/2/7", "%2"),
             ContainsSubstring("indices are made by aten::clone, expected aten::max_pool2d_with_indices"));
  CHECK_THAT(changed(pool, "/forward/steps/0/1/1", "%1 i64[b,1,3,2]"),
             ContainsSubstring("grad_output is f32[2,1,2,2], expected [2,1,3,2]"));

  const auto fixture = [](const std::string& model, std::size_t layer) {
    const std::string from = captured_model(model);
    const Json manifest = json::parse_file(from + "/manifest.json");
    return json::parse_file(from + "/graphs/" + manifest["layers"][layer]["graph"].get<std::string>() +
                            ".json");
  };
  const Json layer_norm = fixture("masked", 2);
  CHECK(read(layer_norm) == "accepted");
  CHECK_THAT(changed(layer_norm, "/forward/steps/0/1/1", "%1 f32[b,3,1]"),
             ContainsSubstring("mean is f32[2,3,1], expected [2,4,1]"));
  CHECK_THAT(changed(layer_norm, "/forward/steps/0/1/2", "%2 f32[1]"),
             ContainsSubstring("rstd is f32[1], expected [2,4,1]"));
  Json narrow = layer_norm;
  narrow["parameters"][0] = "f32[4]";
  narrow["backward_weight"]["gradients"][0] = nullptr;
  CHECK_THAT(read(narrow), ContainsSubstring("weight is f32[4], expected [8]"));
  const Json batch_norm = fixture("norm", 1);
  CHECK(read(batch_norm) == "accepted");
  CHECK_THAT(changed(batch_norm, "/forward/steps/1/1/1", "%2 f32[1]"),
             ContainsSubstring("save_mean is f32[1], expected [6]"));
}

}  // namespace

TEST_CASE("graphs that are refused", "[captured_refusals]") {
  CHECK(refusal("tiny", {}) == "accepted");
  const auto check = [](const std::string& pointer, const Json& value, const std::string& says) {
    INFO(pointer << " " << value.dump());
    CHECK_THAT(with_graph("tiny", pointer, value), ContainsSubstring(says));
  };
  check("/format", 1, "/format: ");
  check("/extra", 1, "extra");
  check("/parameters/0", "f32[16,9*b]", "/parameters/0: expected a type whose sizes do not depend on b");
  check("/inputs/0", "f32[8]", "/inputs: expected a type whose sizes depend on b");
  check("/multiply_adds", -1, "/multiply_adds: ");
  check("/forward/steps", 3, "/forward/steps: expected a list of steps");
  check("/forward/steps/0", Json::array({"aten::t"}), "/forward/steps/0: expected [\"OPERATOR\"");
  check("/forward/steps/0/0", "aten::tt", "operator \"aten::tt\" is not in the list");
  check("/forward/steps/2/0", "aten::relu_", "did you mean \"aten::relu\"?");
  check("/forward/steps/2/0", "aten::bernoulli", "is not in the list");
  check("/forward/steps/2/0", "aten::from_file", "is not in the list");
  check("/forward/steps/0/2", Json::array({"p0", 1}),
        "/forward/steps/0/2: aten::t takes 1 argument, found 2");
  check("/forward/steps/0/2/0", 3,
        "/forward/steps/0/2/0: expected a value or {\"scalar\": ...} for self (Tensor)");
  check("/forward/steps/1/2/3", "p0", "for beta (");
  check("/forward/steps/0/2/0", "%0", "there is no value \"%0\" by now");
  check("/forward/steps/0/2/0", "p2", "there is no value \"p2\" by now");
  check("/forward/steps/0/2/0", "p00", "there is no value \"p00\" by now");
  check("/forward/steps/0/2/0", "u0", "there is no value \"u0\" by now");
  check("/forward/steps/0/2/0", "g0", "\"g0\" cannot be read here");
  check("/forward/steps/0/2/0", "%99999999999999999999", "there is no value");
  check("/forward/steps/0/1/0", "%1 f32[8,16]", "expected \"%0 TYPE\": results are numbered in their order");
  check("/forward/steps/0/1/0", "%0 f33[8,16]", "expected a type like");
  check("/forward/steps/0/1", Json::array({"%0 f32[8,16]", nullptr}), "aten::t has 1 results, found 2");
  check("/forward/outputs/0", "%0",
        "/forward/outputs/0: expected a value of type f32[b,16], this is f32[8,16]");
  check("/forward/keep_input/0", "p0", "need not be kept");
  check("/forward/keep_input/0", "%7", "there is no value \"%7\" by now");
  check("/forward/keep_weight", Json::array({"in0", "in0"}), "is kept twice");
  check("/forward/buffers", Json::array({nullptr}), "expected 0 names or nulls, found 1");
  check("/backward_input/steps/0/2/1", "%1", "\"%1\" cannot be read here: it is not kept for this part");
  check("/backward_input/outputs/0", "%3", "expected a value of type f32[b,8]");
  check("/backward_input/keep_weight/0", "in0", "it is not kept for this part");
  check("/backward_weight/steps/0/2/0", "p0", "\"p0\" cannot be read here");
  check("/backward_weight/gradients", Json::array({"%6"}), "expected 2 names or nulls, found 1");
  check("/backward_weight/gradients/0", "%7", "expected a value of type f32[16,8]");
  check("/backward_weight/steps/2/2/1", Json::array({"x"}), "expected an integer for dim");
  check("/backward_weight/steps/2/2/2", 0, "expected true or false for keepdim");
  check("/backward_weight/steps/2/2/3", Json{{"dtype", "f8"}}, "expected one of f32");
  check("/evaluate/steps/0/1/0", "%4 f32[8,16]", "expected \"%0 TYPE\"");
  check("/evaluate/outputs/0", "%9", "there is no value \"%9\" by now");
}

TEST_CASE("graphs of buffers and dropouts that are refused", "[captured_refusals]") {
  const auto alone = [](const std::string& model, std::size_t layer, const std::function<void(Json&)>& edit) {
    const std::string from = captured_model(model);
    const Json manifest = json::parse_file(from + "/manifest.json");
    Json graph =
        json::parse_file(from + "/graphs/" + manifest["layers"][layer]["graph"].get<std::string>() + ".json");
    edit(graph);
    return read(graph);
  };
  const auto norm = [&](const std::string& pointer, const Json& value) {
    return alone("norm", 1, [&](Json& graph) { graph[Json::json_pointer(pointer)] = value; });
  };
  CHECK(norm("/multiply_adds", 0) == "accepted");
  CHECK_THAT(norm("/forward/buffers/0", "u1"),
             ContainsSubstring("is a view of u1, which the forward changes"));
  CHECK_THAT(norm("/forward/buffers/2", "%4"), ContainsSubstring("expected a value of type i64[]"));
  CHECK_THAT(norm("/backward_input/steps/0/2/3", "u0"),
             ContainsSubstring("read u0, which another micro-batch's forward may have changed"));
  const Json stats = Json::parse(
      R"(["aten::native_batch_norm", ["%1 f32[b,6]", "%2 f32[6]", "%3 f32[6]"], ["in0", "p0", "p1", "u0", "u1", true, 0.1, 1e-5]])");
  CHECK_THAT(norm("/forward/steps/1", stats),
             ContainsSubstring("in training would write to its running statistics"));

  const auto dropout = [&](const std::string& pointer, const Json& value) {
    return alone("dropout", 1, [&](Json& graph) { graph[Json::json_pointer(pointer)] = value; });
  };
  CHECK(dropout("/forward/steps/1/2/2", 1) == "accepted");
  CHECK_THAT(dropout("/forward/steps/1/2/1", 1.0), ContainsSubstring("/forward/steps/1/2/1: "));
  CHECK_THAT(dropout("/forward/steps/1/2/1", 0.9999999), ContainsSubstring("too close to 1"));
  CHECK_THAT(dropout("/forward/steps/1/2/2", 4000), ContainsSubstring("/forward/steps/1/2/2: "));
  CHECK_THAT(dropout("/forward/steps/1/1/1", "%2 f32[b,4]"),
             ContainsSubstring("expected a value of type bool[b,4]"));
  CHECK_THAT(dropout("/backward_input/steps/0/2/1", "g0"), ContainsSubstring("expected a mask for f32[b,4]"));
  CHECK_THAT(dropout("/evaluate/steps/1",
                     Json::parse(R"(["stagecraft::dropout", ["%1 f32[b,4]", null], ["%0", 0.5, 1]])")),
             ContainsSubstring("random numbers are drawn in forward alone"));
  const auto twice = [](Json& graph) {
    graph["forward"]["steps"][2] =
        Json::parse(R"(["stagecraft::dropout", ["%3 f32[b,4]", null], ["%1", 0.5, 0]])");
  };
  CHECK_THAT(alone("dropout", 1, twice), ContainsSubstring("stream 0 is another step's"));

  const auto noise = [&](const char* step) {
    return alone("dropout", 1, [&](Json& graph) {
      Json& steps = graph["forward"]["steps"];
      steps[2] = Json::parse(step);
      steps.push_back(Json::parse(R"(["aten::add.Tensor", ["%4 f32[b,4]"], ["%1", "%3", 1]])"));
      graph["forward"]["outputs"][0] = "%4";
      count_on(graph, 4, 8, 1);
    });
  };
  CHECK(noise(R"(["stagecraft::bernoulli", ["%3 f32[b,1]"], [0.8, 1]])") == "accepted");
  CHECK(noise(R"(["stagecraft::uniform", ["%3 f32[b,1]"], [1]])") == "accepted");
  CHECK(noise(R"(["stagecraft::normal", ["%3 f32[b,1]"], [1]])") == "accepted");
  CHECK(noise(R"(["stagecraft::exponential", ["%3 f32[b,1]"], [1]])") == "accepted");
  CHECK_THAT(noise(R"(["stagecraft::normal", ["%3 f32[b,1]"], []])"),
             ContainsSubstring("takes 1 argument, found 0"));
  CHECK_THAT(noise(R"(["stagecraft::bernoulli", ["%3 f32[b,1]"], [1.5, 1]])"),
             ContainsSubstring("/forward/steps/2/2/0: "));
  CHECK_THAT(noise(R"(["stagecraft::bernoulli", ["%3 f32[b,1]"], [0.5, 0]])"),
             ContainsSubstring("stream 0 is another step's"));
  CHECK_THAT(noise(R"(["stagecraft::bernoulli", ["%3 f32[b,1]"], [0.5]])"),
             ContainsSubstring("takes 2 arguments, found 1"));
  CHECK_THAT(noise(R"(["stagecraft::uniform", ["%3 f32[b,1]"], [0.5, 1]])"),
             ContainsSubstring("takes 1 argument, found 2"));
  CHECK_THAT(noise(R"(["stagecraft::uniform", ["%3 i64[b,1]"], [1]])"),
             ContainsSubstring("expected a floating-point type"));
  CHECK_THAT(noise(R"(["stagecraft::uniform", [null], [1]])"),
             ContainsSubstring("nothing reads what is drawn"));
}

TEST_CASE("manifests and weights that are refused", "[captured_refusals]") {
  const auto check = [](const std::string& pointer, const Json& value, const std::string& says) {
    INFO(pointer << " " << value.dump());
    CHECK_THAT(with_manifest("tiny", pointer, value), ContainsSubstring(says));
  };
  check("/format", 3, "/format: ");
  check("/more", 3, "more");
  for (const char* torch : {"2.1.0", "2.115.0", "3.11.0", "2", ""}) {
    check("/torch", torch, fmt::format("/torch: the model was captured with torch {}; this is", torch));
  }
  check("/sizes", Json::array(), "/sizes: ");
  check("/sizes/0", 0, "/sizes: expected sizes of at least 1");
  check("/layers", Json::array(), "/layers: ");
  check("/layers/1/name", "0", "/layers/1/name: \"0\" is another layer's name");
  check("/layers/0/graph", "../../etc/passwd", "/layers/0/graph: expected 16 hex digits");
  check("/layers/0/graph", "0123456789abcdef", "cannot be opened");
  check("/input", "f32[b,9]", "/layers/0/graph: expected f32[b,8], but the model's input is f32[b,9]");
  check("/output", "f32[b,9]", "/output: expected f32[b,9], but the last layer makes f32[b,4]");
  check("/layers/0/parameters", Json::array({"0.weight"}),
        "/layers/0/parameters: the graph has 2 of them, found 1");
  check("/layers/0/parameters/0", "0.wight", "\"0.wight\" is not in /weights");
  check("/layers/0/parameters/1", "2.bias", "expected f32[16], but \"2.bias\" is f32[4]");
  check("/weights/0.bias", "f32[b]", "depends on b");
  check("/weights/more", "f32[1]", "no layer names it");
  check("/memory_orders", {{"2.bias", {1}}}, "/memory_orders/2.bias: expected 0 in some order");
  const auto order = [&](std::vector<std::string> names, const char* says) {
    check("/parameter_order", std::move(names), says);
  };
  order({"2.bias", "2.weight", "0.weight"}, R"(/parameter_order: "0.bias" is missing)");
  order({"2.bias", "2.weight", "2.bias"}, R"(/parameter_order/2: "2.bias" is there twice)");
  order({"2.bais"}, R"(/parameter_order/0: no layer trains "2.bais")");
  check("/weights/0.weight", "f64[16,8]", "expected f32[16,8], but \"0.weight\" is f64[16,8]");
  CHECK_THAT(
      refusal("tiny",
              {.manifest = [](Json& manifest) { std::swap(manifest["layers"][0], manifest["layers"][1]); }}),
      ContainsSubstring("/layers/0/graph: expected f32[b,16], but the model's input is f32[b,8]"));
  CHECK_THAT(
      refusal("tiny",
              {.manifest = [](Json& manifest) { manifest["layers"].push_back(manifest["layers"][1]); }}),
      ContainsSubstring("is another layer's name"));
  CHECK_THAT(refusal("tiny", {.weights = [](auto& weights) { weights.erase("2.bias"); }}),
             ContainsSubstring("weights.safetensors: has no tensor \"2.bias\""));
  CHECK_THAT(refusal("tiny", {.weights = [](auto& weights) { weights["2.bias"] = at::ones({5}); }}),
             ContainsSubstring("tensor \"2.bias\": expected f32[4], found [5] of F32"));
  CHECK_THAT(
      refusal("dropout", {.constants = [](auto& constants) { constants.begin()->second = at::ones({5}); }}),
      ContainsSubstring("constants.safetensors: tensor \"constant/144034bee48bc4f7\": expected [4] of F32"));
  CHECK_THAT(with_manifest("tiny", "/untrained", {{"2.bias", "f32[4]"}}),
             ContainsSubstring("/untrained/2.bias: a layer trains it"));
  CHECK_THAT(with_manifest("tiny", "/untrained", {{"x", "f32[b]"}}),
             ContainsSubstring("/untrained/x: depends on b"));
}

TEST_CASE("terms of a loss that are refused", "[captured_refusals]") {
  const auto named = [](const Json& terms) { return with_manifest("mixed", "/loss/terms", terms); };
  CHECK(named({"x", "Y_2", "a.b/c-d"}) == "accepted");
  CHECK_THAT(named({"x", "y"}),
             ContainsSubstring("/loss/graph: expected one output for the loss and one for each of "
                               "its 2 terms, found 4"));
  CHECK_THAT(named({"x", "x", "y"}), ContainsSubstring("/loss/terms: \"x\" stands there twice"));
  CHECK_THAT(named({"x", "loss", "y"}),
             ContainsSubstring("/loss/terms: \"loss\" is the name of what is trained"));
  for (const std::string bad : {"", "a b", "-a", "/a", "a\n", "\u00fc", "a\"b"}) {
    CHECK_THAT(named({"x", bad, "y"}), ContainsSubstring("expected 1 to 40 letters, digits"));
  }
  CHECK(named({"x", std::string(40, 'n'), "y"}) == "accepted");
  CHECK_THAT(named({"x", std::string(41, 'n'), "y"}), ContainsSubstring("expected 1 to 40 letters, digits"));
  Json many = Json::array();
  for (int i = 0; i < 33; ++i) many.push_back(fmt::format("t{}", i));
  CHECK_THAT(named(many), ContainsSubstring("/loss/terms: 33 terms; a loss has at most 32"));

  const auto graph = [](const std::string& pointer, const Json& value) {
    return refusal("mixed", {.loss_graph = [&](Json& json) { json[Json::json_pointer(pointer)] = value; }});
  };
  CHECK_THAT(graph("/backward_input/steps/0/2/0", "g1"),
             ContainsSubstring(
                 "/backward_input/steps/0: reads g1, the gradient of the term \"ce\", which has none"));
  CHECK_THAT(graph("/backward_input/steps/0/2/0", "g2"),
             ContainsSubstring("g2"));  // of an integer: there is none
  const auto of_rows = [](Json& json) {
    json["outputs"][3] = "f32[4*b]";
    json["forward"]["outputs"][3] = "%5";
    json["evaluate"]["outputs"][3] = "%4";
  };
  CHECK_THAT(refusal("mixed", {.loss_graph = of_rows}),
             ContainsSubstring("expected one number for the term \"spread\", its output 3 is f32[4*b]"));
}

TEST_CASE("bundles that are refused", "[captured_refusals]") {
  const auto check = [](const std::string& pointer, const Json& value, const std::string& says) {
    INFO(pointer << " " << value.dump());
    CHECK_THAT(with_manifest("mixed", pointer, value), ContainsSubstring(says));
  };
  const auto names = [](std::size_t layer, const char* key) {
    return json::parse_file(captured_model("mixed") + "/manifest.json")["layers"][layer][key];
  };
  CHECK(refusal("mixed", {}) == "accepted");
  Json in = names(3, "in"), out = names(3, "out");
  REQUIRE(in == Json::array({"model:1", "model:2", "blocks.0"}));
  REQUIRE(out == Json::array({"blocks.1", "model:1", "model:2"}));
  check("/layers/3/in/0", "modle:1",
        "/layers/3/in/0: no value \"modle:1\" goes on before it; did you mean \"model:1\"?");
  check("/layers/3/in/0", "model:2", "/layers/3/in/0: expected f32[4,b,8], but \"model:2\" is f32[4,8]");
  check("/layers/4/in/2", "model:1", "/layers/4/in/2: \"model:1\" is read twice");
  check("/layers/3/in/2", "model:1", "/layers/2/out/0: no layer behind it reads \"blocks.0\"");
  check("/layers/4/in", Json::array({"model:1", "model:2"}),
        "/layers/4/in: its graph reads 3 values, found 2: model:1, model:2");
  check("/layers/3/out/0", "model:1", "/layers/3/out/1: \"model:1\" is made twice");
  check("/layers/3/out/1", "memory",
        "/layers/3/out: \"model:1\" is read here and again behind this layer: it must be one of the values");
  check("/layers/3/out/0", "model:3", "another value \"model:3\" goes on, which the layer does not read");
  check("/layers/3/out", Json::array({"blocks.1"}), "/layers/3/out: its graph makes 3 values, found 1");
  check("/layers/9/in", Json::array({"model:3"}), "/layers/9/in: its graph reads 2 values, found 1: model:3");
  check("/layers/11/out", Json::array({"blocks.6", "more"}), "/layers/11/out: its graph makes 1 values");
}

TEST_CASE("manifests of shorter samples that are refused", "[captured_refusals]") {
  const auto refused = [](const std::string& file, const std::string& pointer, const Json& value) {
    const ScratchFolder folder;
    std::filesystem::copy(captured_model("lengths"), folder.path("model"),
                          std::filesystem::copy_options::recursive);
    Json manifest = json::parse_file(folder.path("model/" + file));
    if (!pointer.empty()) manifest[Json::json_pointer(pointer)] = value;
    write_file_atomically(folder.path("model/" + file), manifest.dump());
    try {
      (void)captured::read_model_folder(folder.path("model"));
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto check = [&](const std::string& pointer, const Json& value, const std::string& says) {
    INFO(pointer << " " << value.dump());
    CHECK_THAT(refused("manifest.2.json", pointer, value), ContainsSubstring("manifest.2.json: " + says));
  };
  const Json whole = json::parse_file(captured_model("lengths") + "/manifest.json");
  CHECK(refused("manifest.2.json", "", {}) == "accepted");
  check("/shorter", Json::array({2}), "/shorter: only manifest.json names shorter ones");
  check("/input", "f32[b,3,8]", "/layers/0/in/0: expected f32[b,2,8], but \"input\" is f32[b,3,8]");
  check("/fields/mask/fill", 1, "/fields/mask: is not the model of manifest.json on samples of 2");
  check("/layers/4/name", "other", "/layers/4/name: is not the model");
  check("/layers/2/graph", whole["layers"][2]["graph"], "/layers/2/in/0: expected f32[b,4,8]");
  check("/loss/reduction", "sum", "/loss/reduction: is not the model");
  CHECK_THAT(refused("manifest.json", "/shorter", Json::array({3, 2})),
             ContainsSubstring("/shorter/1: expected ascending"));
  CHECK_THAT(refused("manifest.json", "/shorter", Json::array({2, 5})),
             ContainsSubstring("manifest.5.json: cannot be opened"));
}

TEST_CASE("a graph whose bytes were changed is refused", "[captured_refusals]") {
  const ScratchFolder folder;
  const std::string path = edited_copy(folder, "tiny", {});
  const std::string hash = json::parse_file(path + "/manifest.json")["layers"][0]["graph"].get<std::string>();
  const std::string graph = path + "/graphs/" + hash + ".json";
  (void)folder.write("model/graphs/" + hash + ".json", read_text_file(graph) + "\n");
  CHECK_THROWS_WITH(captured::read_model_folder(path),
                    ContainsSubstring(graph + ": its SHA-256 begins with "));
}

TEST_CASE("results of another type than declared are found by the first run", "[captured_refusals]") {
  const ScratchFolder folder;
  const std::string path =
      edited_copy(folder, "tiny",
                  {.first_graph = [](Json& graph) { graph["forward"]["steps"][0][1][0] = "%0 f32[16,8]"; }});
  const auto model = captured::read_model_folder(path);
  const captured::Programs& programs = model->layers[0].replay->at(3, at::kCPU);
  const std::vector<c10::IValue> frame{at::ones({3, 8}), at::ones({16, 8}), at::ones({16})};
  CHECK_THROWS_WITH(
      programs.forward.run(frame, {}),
      ContainsSubstring(
          "/forward/steps/0: aten::t: result 0 is f32[8, 16], its declared type f32[16,8] is [16, 8]"));
}

TEST_CASE("weights that are not finite are said to be so before anything is trained", "[captured_refusals]") {
  const ScratchFolder folder;
  CapturedConfig captured;
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    captured.path = edited_copy(
        folder, "tiny", {.weights = [&](auto& weights) { weights.at("0.weight").view({-1})[5] = bad; }});
    captured.reader = {};
    const Model model =
        build_model(ModelConfig{captured}, {{8}, at::kFloat, 4}, at::kFloat, {"run.json", "/model"});
    CHECK_THROWS_WITH(
        initial_parameters(model, 0, 1),
        ContainsSubstring("weights.safetensors: \"0.weight\" holds numbers that are not finite"));
    CHECK_NOTHROW(initial_parameters(model, 1, 1));
  }
}

}  // namespace stagecraft::test::captured_refusal_cases
