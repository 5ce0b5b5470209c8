// Models captured from PyTorch: types, operators, layers, and training that equals built-in layers'.

#include "base/json.h"
#include "models/captured/captured_layer.h"
#include "models/captured/operators/operators.h"
#include "models/check/check_gradients.h"
#include "models/layers/dropout_masks.h"
#include "models/layers/gradient_accumulator.h"
#include "models/losses/cross_entropy.h"
#include "models/model.h"
#include "models/tensors/philox_tensor.h"
#include "test/models/captured_folder.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <ATen/core/jit_type.h>
#include <c10/core/InferenceMode.h>

namespace stagecraft::test::captured_cases {
namespace {

using Catch::Matchers::ContainsSubstring;

const InputPlace kPlace{"run.json", "/model"};
const SampleSpec kVector{{8}, at::kFloat, 4};
const SampleSpec kPadded{
    {4, 8}, at::kFloat, 5, Targets::none, {{"mask", {4}, at::kLong}, {"labels", {4}, at::kLong}}};

Model build(const Json& json, Precision precision = {}, const SampleSpec& sample = kVector) {
  ModelConfig config;
  json::read_value(json, kPlace, config, json::Range{});
  return build_model(config, sample, precision, kPlace);
}

Model model_at(const std::string& path, Precision precision = {}, const SampleSpec& sample = kVector) {
  return build({{"family", "captured"}, {"path", path}}, precision, sample);
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const InputError& error) {
    return error.what();
  } catch (const InternalError& error) {
    return std::string("internal: ") + error.what();
  }
  return "accepted";
}

/// Plain training of a whole model, one micro-batch per step.
class Training {
 public:
  explicit Training(const Model& model) : model_(model) {
    for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
      parameters.push_back(initial_parameters(model, layer, 1));
      buffers.push_back(initial_buffers(model, layer));
    }
  }

  double step(const at::Tensor& input, const at::Tensor& targets, std::uint64_t number) {
    const c10::InferenceMode guard;
    const std::size_t layers = model_.layers.size();
    std::vector<Kept> kept(layers);
    at::Tensor x = input;
    for (std::size_t i = 0; i < layers; ++i) {
      x = model_.layers[i]->forward({parameters[i], buffers[i]}, x, {Mode::train, {1, i, number, 0}},
                                    &kept[i]);
    }
    at::Tensor gradient = at::_softmax(x, 1, false).sub(at::one_hot(targets, x.size(1))).div(x.size(0));
    const double loss = at::cross_entropy_loss(x, targets).item<double>();
    for (std::size_t i = layers; i-- > 0;) {
      gradient = model_.layers[i]->backward_input(parameters[i], gradient, kept[i], i > 0);
      GradientAccumulator sums(parameters[i]);
      if (!parameters[i].empty()) model_.layers[i]->backward_weight(kept[i], sums);
      for (std::size_t j = 0; j < parameters[i].size(); ++j) parameters[i][j].sub_(sums.gradients()[j], 0.1);
    }
    return loss;
  }

  std::vector<Tensors> parameters, buffers;

 private:
  const Model& model_;
};

Tensors flat(const std::vector<Tensors>& tensors) {
  Tensors all;
  for (const Tensors& each : tensors) all.insert(all.end(), each.begin(), each.end());
  return all;
}

/// Ten steps of both: equal losses and weights, to the bit. `other` starts with the captured model's weights.
void check_equal_training(const Model& model, const Model& other) {
  Training ours(model), theirs(other);
  Tensors start = flat(ours.parameters), its = flat(theirs.parameters);
  REQUIRE(start.size() == its.size());
  for (std::size_t i = 0; i < its.size(); ++i) its[i].copy_(start[i]);
  at::manual_seed(7);
  for (std::uint64_t step = 0; step < 10; ++step) {
    const std::int64_t samples = step % 3 == 2 ? 3 : 5;
    const at::Tensor input = at::randn({samples, 8}), targets = at::randint(4, {samples}, at::kLong);
    CHECK(ours.step(input, targets, step) == theirs.step(input, targets, step));
  }
  start = flat(ours.parameters), its = flat(theirs.parameters);
  for (std::size_t i = 0; i < its.size(); ++i) CHECK(at::equal(start[i], its[i]));
}

TEST_CASE("fused accumulation adds products without making them, and sums are close", "[captured]") {
  class Sums final : public GradientSink {
   public:
    void add_product(int parameter, const at::Tensor& left, const at::Tensor& right) override {
      ++products;
      sums[parameter] = sums.contains(parameter) ? sums[parameter] + left.mm(right) : left.mm(right);
    }
    void add(int parameter, const at::Tensor& gradient) override {
      sums[parameter] = sums.contains(parameter) ? sums[parameter] + gradient : gradient;
    }
    std::map<int, at::Tensor> sums;
    int products = 0;
  };
  const c10::InferenceMode guard;
  const Json exact{{"family", "captured"}, {"path", captured_model("tiny")}};
  Json fused = exact;
  fused["accumulate"] = "fused";
  Sums sums[2];
  for (const bool is_fused : {false, true}) {
    const Model model = build(is_fused ? fused : exact);
    const Layer& layer = *model.layers[0];
    const Tensors parameters = initial_parameters(model, 0, 1);
    Tensors buffers;
    Kept kept;
    (void)layer.forward({parameters, buffers}, at::arange(24, at::kFloat).sin().view({3, 8}), {}, &kept);
    (void)layer.backward_input(parameters, at::arange(48, at::kFloat).cos().view({3, 16}), kept, false);
    layer.backward_weight(kept, sums[is_fused ? 1 : 0]);
  }
  CHECK(sums[0].products == 0);
  CHECK(sums[1].products == 1);
  for (const auto& [parameter, sum] : sums[0].sums) CHECK(at::equal(sum, sums[1].sums.at(parameter)));
  CHECK(build(exact).fingerprint != build(fused).fingerprint);
  Json wrong = exact;
  wrong["accumulate"] = "fuse";
  CHECK_THAT(refusal([&] { (void)build(wrong); }), ContainsSubstring("did you mean \"fused\"?"));
}

}  // namespace

TEST_CASE("value types: sizes are multiples of b and a number", "[captured]") {
  const captured::ValueType type = captured::parse_value_type("bf16[16*b+1,64,b,2*b-1]", kPlace);
  CHECK(type.dtype == at::kBFloat16);
  CHECK(type.at(3) == std::vector<std::int64_t>{49, 64, 3, 5});
  CHECK(type.text() == "bf16[16*b+1,64,b,2*b-1]");
  CHECK(type.samples_of({49, 64, 3, 5}) == 3);
  CHECK_FALSE(type.samples_of({49, 64, 2, 5}));
  CHECK_FALSE(type.samples_of({49, 64, 3}));
  CHECK_FALSE(type.samples_of({50, 64, 3, 5}));
  CHECK(captured::parse_value_type("i64[]", kPlace).at(9).empty());
  for (const char* bad :
       {"", "f32", "f32[", "f33[1]", "f32[1,]", "f32[,1]", "f32[-1]", "f32[0*b]", "f32[b*2]", "f32[1 ,2]",
        "f32[b+]", "f32[b]x", "f32[99999999999999999999]", "f32[b+-1]"}) {
    INFO(bad);
    CHECK_THAT(refusal([&] { (void)captured::parse_value_type(bad, kPlace); }),
               ContainsSubstring("expected a type like"));
  }
  CHECK_THAT(refusal([] { (void)captured::parse_value_type("f32[b-4]", kPlace).at(3); }),
             ContainsSubstring("has a negative size"));
}

TEST_CASE("every operator in the list is in this LibTorch, and makes tensors of its arguments alone",
          "[captured]") {
  for (const captured::Operator& op : captured::operators()) {
    INFO(op.name);
    CHECK(captured::find_operator(op.name) == &op);  // named once
    const c10::OperatorHandle handle = captured::handle_of(op);
    REQUIRE_FALSE(handle.schema().returns().empty());
    REQUIRE_FALSE(handle.schema().is_vararg());
    bool views = false;
    for (const c10::Argument& made : handle.schema().returns()) {
      const bool list = made.type()->str() == "Tensor[]" && handle.schema().returns().size() == 1;
      CHECK((list || made.type()->kind() == c10::TypeKind::TensorType));
      views = views || made.alias_info() != nullptr;
    }
    if (views) CHECK(op.effect == captured::Effect::view);
  }
  CHECK(captured::find_operator("aten::add_.Tensor") == nullptr);
  CHECK(captured::find_operator("aten::bernoulli") == nullptr);
  CHECK_THROWS_AS(captured::handle_of({"aten::relu_"}), InternalError);
  CHECK_THROWS_AS(captured::handle_of({"aten::native_dropout"}), InternalError);
  CHECK_THROWS_AS(captured::handle_of({"aten::no_such_operator"}), InternalError);
}

TEST_CASE("a captured layer's halves are autograd's gradients through its forward", "[captured]") {
  for (const char* name : {"tiny", "norm"}) {
    const ScratchFolder folder;
    const std::string path = edited_copy(folder, name, {.doubles = true});
    const Model model = model_at(path, at::kDouble);
    for (const LayerPtr& layer : model.layers) {
      INFO(name << ", layer " << layer->name());
      const std::int64_t width =
          boundaries(model, 5)[static_cast<std::size_t>(&layer - model.layers.data())].shape[1];
      if (layer->buffers().empty())
        CHECK_NOTHROW(check_gradients(*layer, at::randn({5, width}, at::kDouble)));
    }
  }
}

TEST_CASE("a captured model trains as the same model of built-in layers, to the bit", "[captured]") {
  const Model tiny = model_at(captured_model("tiny"));
  check_equal_training(tiny, build({{"family", "mlp"}, {"hidden", {16}}}));
  CHECK(tiny.name == "tiny");
  CHECK(tiny.parameter_count() == 16 * 8 + 16 + 4 * 16 + 4);
  CHECK(tiny.multiply_adds() == 16 * 8 + 4 * 16);

  const Json layers = Json::parse(
      R"([{"type": "linear", "features": 6}, {"type": "batch_norm"}, {"type": "linear", "features": 4}])");
  const Model norm = model_at(captured_model("norm"));
  check_equal_training(norm, build({{"family", "sequential"}, {"layers", layers}}));
}

TEST_CASE("a captured layer starts with the folder's weights, in copies of its own", "[captured]") {
  const Model model = model_at(captured_model("tiny"));
  const SafetensorsFile file = read_safetensors(captured_model("tiny") + "/weights.safetensors");
  const Tensors first = initial_parameters(model, 0, 1);
  CHECK(model.layers[0]->parameters()[0].name == "0.weight");
  CHECK(at::equal(first[0], file.tensors.at("0.weight")));
  first[0].zero_();
  CHECK(at::equal(initial_parameters(model, 0, 2)[0], file.tensors.at("0.weight")));
}

TEST_CASE("captured batch norm: buffers have their types, and change in committed training alone",
          "[captured]") {
  const c10::InferenceMode guard;
  const Model model = model_at(captured_model("norm"));
  const Layer& norm = *model.layers[1];
  const Tensors parameters = initial_parameters(model, 1, 1);
  Tensors buffers = initial_buffers(model, 1);
  const std::vector<BufferSpec>& specs = norm.buffers();
  CHECK(specs[0].over_replicas == OverReplicas::mean);
  CHECK(specs[2].over_replicas == OverReplicas::first);
  CHECK(buffers[2].scalar_type() == at::kLong);
  CHECK(norm.least_samples({6}) == 2);

  const at::Tensor x = at::randn({5, 6});
  const auto before = buffers[0].clone();
  (void)norm.forward({parameters, buffers}, x, {Mode::train, {}, /*commit_buffers=*/false}, nullptr);
  (void)norm.forward({parameters, buffers}, x, {Mode::evaluate, {}}, nullptr);
  CHECK(at::equal(buffers[0], before));
  CHECK(buffers[2].item<std::int64_t>() == 0);
  (void)norm.forward({parameters, buffers}, x, {Mode::train, {}}, nullptr);
  CHECK_FALSE(at::equal(buffers[0], before));
  CHECK(buffers[2].item<std::int64_t>() == 1);
  const at::Tensor expected =
      at::batch_norm(x, parameters[0], parameters[1], buffers[0], buffers[1], false, 0.1, 1e-5, false);
  CHECK(at::equal(norm.forward({parameters, buffers}, x, {Mode::evaluate, {}}, nullptr), expected));
}

TEST_CASE("captured dropout draws its masks by name", "[captured]") {
  const c10::InferenceMode guard;
  const Model model = model_at(captured_model("dropout"));
  const Layer& layer = *model.layers[1];
  const Tensors parameters = initial_parameters(model, 1, 1);
  Tensors buffers;
  const at::Tensor x = at::randn({5, 16}), g = at::randn({5, 4});
  const RandomKey key{3, 1, 7, 2};
  const at::Tensor constant =
      read_safetensors(captured_model("dropout") + "/constants.safetensors")
          .tensors.at(layer.facts().details.substr(layer.facts().details.find("constant")));
  const Dropout dropout(0.25, 0);
  const at::Tensor mask = dropout.mask({5, 4}, key);
  const at::Tensor product = at::mm(x, parameters[0]);

  Kept kept;
  const at::Tensor output = layer.forward({parameters, buffers}, x, {Mode::train, key}, &kept);
  CHECK(at::equal(output, dropout.apply(product, mask).add(constant)));
  CHECK(at::equal(output, layer.forward({parameters, buffers}, x, {Mode::train, key, false}, nullptr)));
  CHECK(at::equal(layer.forward({parameters, buffers}, x, {Mode::evaluate, key}, nullptr),
                  product.add(constant)));

  REQUIRE(kept.for_input.size() == 1);
  REQUIRE(kept.for_weight.size() == 1);
  CHECK(at::equal(kept.for_input[0], mask));
  CHECK(kept.for_weight[0].is_same(x));
  const at::Tensor gradient = layer.backward_input(parameters, g, kept, true);
  const at::Tensor dropped = dropout.apply(g, mask);
  CHECK(at::equal(gradient, at::mm(dropped, parameters[0].t())));
  CHECK(kept.for_input.empty());
  REQUIRE(kept.for_weight.size() == 2);
  GradientAccumulator sums(parameters);
  layer.backward_weight(kept, sums);
  CHECK(kept.for_weight.empty());
  CHECK(at::equal(sums.gradients()[0], at::mm(x.t(), dropped)));
}

TEST_CASE("captured noise is drawn by name", "[captured]") {
  const c10::InferenceMode guard;
  const ScratchFolder folder;
  const auto edit = [](const char* step) {
    return [step](Json& graph) {  // what layer 0 makes of `in` alone, times noise; nothing is kept of it
      graph["forward"]["steps"].push_back(Json::parse(step));
      graph["forward"]["steps"].push_back(
          Json::parse(R"(["aten::mul.Tensor", ["%4 f32[b,16]"], ["%2", "%3"]])"));
      graph["forward"]["outputs"][0] = "%4";
      count_on(graph, 3, 7, 2);
    };
  };
  const at::Tensor x = at::randn({5, 8});
  const RandomKey key{3, 0, 7, 2};
  const RandomStream stream{key, 4};
  const std::pair<const char*, at::Tensor> cases[] = {
      {R"(["stagecraft::bernoulli", ["%3 f32[b,1]"], [0.6, 4]])",
       bernoulli_numbers({5, 1}, at::kFloat, 0.6, stream, at::kCPU)},
      {R"(["stagecraft::uniform", ["%3 f32[b,1]"], [4]])",
       uniform_numbers({5, 1}, at::kFloat, stream, at::kCPU)},
      {R"(["stagecraft::normal", ["%3 f32[b,1]"], [4]])",
       normal_numbers({5, 1}, at::kFloat, stream, at::kCPU)},
      {R"(["stagecraft::exponential", ["%3 f32[b,1]"], [4]])",
       exponential_numbers({5, 1}, at::kFloat, stream, at::kCPU)},
  };
  for (const auto& [step, drawn] : cases) {
    Edits edits;
    edits.first_graph = edit(step);
    const Model model = model_at(edited_copy(folder, "dropout", edits));
    const Layer& layer = *model.layers[0];
    const Tensors parameters = initial_parameters(model, 0, 1);
    Tensors buffers;
    const at::Tensor plain = at::addmm(parameters[1], x, parameters[0].t()).relu();
    Kept kept;
    const at::Tensor output = layer.forward({parameters, buffers}, x, {Mode::train, key}, &kept);
    CHECK(at::equal(output, plain.mul(drawn)));
    RandomKey other = key;
    other.micro_batch = 3;
    CHECK_FALSE(at::equal(output, layer.forward({parameters, buffers}, x, {Mode::train, other}, nullptr)));
  }
}

TEST_CASE("a captured model's fingerprint is of its graphs, not of where the folder lies", "[captured]") {
  const ScratchFolder folder;
  const std::string path =
      edited_copy(folder, "tiny", {.weights = [](auto& weights) { weights["0.bias"].zero_(); }});
  // The copy's files have other bytes, so its own copy is compared.
  const ScratchFolder second;
  const std::string again = edited_copy(second, "tiny", {});
  CHECK(model_at(path).fingerprint == model_at(again).fingerprint);
  CHECK_THAT(model_at(path).layers[0]->facts().details, ContainsSubstring("graph "));
}

TEST_CASE("a captured layer may stand in a list of layers", "[captured]") {
  const Json layers = Json::array({{{"type", "captured"}, {"path", captured_model("tiny")}, {"layer", "0"}},
                                   {{"type", "linear"}, {"features", 4}}});
  CHECK(build({{"family", "sequential"}, {"layers", layers}}).parameter_count() == 16 * 8 + 16 + 4 * 16 + 4);
  const Json wrong = Json::array({{{"type", "captured"}, {"path", captured_model("tiny")}, {"layer", "1"}}});
  CHECK_THAT(refusal([&] {
               (void)build({{"family", "sequential"}, {"layers", wrong}});
             }),
             ContainsSubstring("run.json: /model/layers/0: ") && ContainsSubstring("has no layer \"1\""));
  const Json misplaced =
      Json::array({{{"type", "captured"}, {"path", captured_model("tiny")}, {"layer", "2"}}});
  CHECK_THAT(refusal([&] {
               (void)build({{"family", "sequential"}, {"layers", misplaced}});
             }),
             ContainsSubstring("it was captured for f32[b,16]"));
}

TEST_CASE("a captured model refuses other data and another precision", "[captured]") {
  const std::string tiny = captured_model("tiny");
  CHECK_THAT(refusal([&] {
               (void)model_at(tiny, {}, {{9}, at::kFloat, 4});
             }),
             ContainsSubstring("run.json: /model/path: ") && ContainsSubstring("captured for f32[b,8]") &&
                 ContainsSubstring("[9]"));
  CHECK_THAT(refusal([&] { (void)model_at(tiny, {}, {{8}, at::kLong, 4}); }), ContainsSubstring("tokens"));
  CHECK_THAT(refusal([&] { (void)model_at(tiny, at::kDouble); }),
             ContainsSubstring("captured in other types"));
  CHECK_THAT(refusal([&] {
               (void)model_at(tiny, {at::kFloat, at::kBFloat16});
             }),
             ContainsSubstring(
                 "its input is bf16[2, 8], and f32[b,8] in the folder; leave dtype, bf16 and fp16 out of "
                 "the config, or capture it with --dtype bfloat16"));
  const std::string narrow = captured_model("mixed_bf16");
  CHECK(model_at(narrow, {at::kFloat, at::kBFloat16}, kPadded).layers.size() > 2);
  CHECK_THAT(refusal([&] { (void)model_at(narrow, {}, kPadded); }),
             ContainsSubstring(R"(set "bf16": {"enabled": true}, or capture it without --dtype)"));
  CHECK_THAT(refusal([&] {
               (void)model_at(narrow, {at::kFloat, at::kHalf}, kPadded);
             }),
             ContainsSubstring("or capture it with --dtype float16"));
}

TEST_CASE("a narrow layer's weights begin as the float32 numbers that it was made of", "[captured]") {
  const Model model = model_at(captured_model("mixed_bf16"), {at::kFloat, at::kBFloat16}, kPadded);
  const Tensors weights = initial_parameters(model, 0, 1);
  REQUIRE(weights.at(0).scalar_type() == at::kFloat);
  CHECK_FALSE(weights[0].equal(weights[0].to(at::kBFloat16).to(at::kFloat)));
  CHECK(compute_copy(model, 0, weights).at(0).equal(weights[0].to(at::kBFloat16)));
}

}  // namespace stagecraft::test::captured_cases
