// Fields of the batch and the loss that a captured model brings: found in the data, and what they refuse.

#include "base/json.h"
#include "models/captured/captured_layer.h"
#include "models/model.h"
#include "test/models/captured_folder.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

namespace stagecraft::test::captured_field_cases {
namespace {

using Catch::Matchers::ContainsSubstring;

const InputPlace kPlace{"run.json", "/model"};
const SampleSpec kSample{
    {4, 8}, at::kFloat, 5, Targets::none, {{"mask", {4}, at::kLong}, {"labels", {4}, at::kLong}}};

Model build(const std::string& path, const Json& fields = Json::array(), const SampleSpec& sample = kSample) {
  ModelConfig config;
  json::read_value(Json{{"family", "captured"}, {"path", path}, {"fields", fields}}, kPlace, config,
                   json::Range{});
  return build_model(config, sample, {}, kPlace);
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

FieldTensors batch_of(const at::Tensor& mask, const at::Tensor& labels) {
  return {{"mask", mask}, {"labels", labels}};
}

TEST_CASE("layers say which fields they read, and stages which they load", "[captured_fields]") {
  const Model model = build(captured_model("masked"));
  CHECK(model.layers[0]->facts().fields.empty());
  CHECK(model.layers[1]->facts().fields == std::vector<std::string>{"mask"});
  REQUIRE(model.loss != nullptr);
  CHECK(model.loss->fields() == std::vector<std::string>{"labels"});
  const auto names = [&](int first, int last, const Loss* loss) {
    std::string all;
    for (const BatchField& field : model.fields_of(first, last, loss))
      all += field.name + "<" + field.from + " ";
    return all;
  };
  CHECK(names(0, 1, nullptr).empty());
  CHECK(names(1, 6, nullptr) == "mask<mask ");
  CHECK(names(7, 8, model.loss.get()) == "labels<labels ");
  CHECK(names(0, 8, model.loss.get()) == "labels<labels mask<mask ");
}

TEST_CASE("a config says where fields come from", "[captured_fields]") {
  const std::string path = captured_model("masked");
  const Model filled = build(path, Json::parse(R"([{"name": "mask", "fill": 1}])"));
  CHECK(filled.fields[1].from.empty());
  CHECK(filled.fields[1].fill == 1);
  const SampleSpec tokens{
      {4, 8}, at::kFloat, 5, Targets::none, {{"m", {4}, at::kLong}, {"l", {4}, at::kInt}}};
  const Json both = Json::parse(R"([{"name": "mask", "from": "m"}, {"name": "labels", "from": "l"}])");
  CHECK(build(path, both, tokens).fields[0].from == "l");
  CHECK(build(path, both, tokens).fingerprint != filled.fingerprint);

  const Json mask_alone = Json::parse(R"([{"name": "mask", "from": "m"}])");
  CHECK(build(path, mask_alone, tokens).loss == nullptr);  // a config's own loss does without labels
  CHECK_THAT(build(path, mask_alone, tokens).why_no_loss,
             ContainsSubstring("the model reads \"labels\" (i64[b,4])"));
  const Json labels_alone = Json::parse(R"([{"name": "labels", "from": "l"}])");
  CHECK_THAT(
      refusal([&] { build(path, labels_alone, tokens); }),
      ContainsSubstring(
          "/model/fields: the model reads \"mask\" (i64[b,4]) of the batch, and the data has inputs, m, l"));
  CHECK_THAT(
      refusal([&] { build(path, Json::parse(R"([{"name": "masks"}])")); }),
      ContainsSubstring("/model/fields/0/name: the model reads no field \"masks\"; did you mean \"mask\"?"));
  CHECK_THAT(
      refusal([&] { build(path, Json::parse(R"([{"name": "mask", "from": "label"}])")); }),
      ContainsSubstring("/model/fields/0/from: the data has no field \"label\"; did you mean \"labels\"?"));
  CHECK_THAT(refusal([&] { build(path, Json::parse(R"([{"name": "mask", "from": "inputs"}])")); }),
             ContainsSubstring("the data's \"inputs\" is numbers of shape [4, 8]"));
}

TEST_CASE("manifests whose fields or loss do not fit their graphs are refused", "[captured_fields]") {
  const auto with = [&](const std::function<void(Json&)>& edit) {
    const ScratchFolder folder;
    return refusal([&] { build(edited_copy(folder, "masked", {.manifest = edit})); });
  };
  CHECK_THAT(with([](Json& m) { m["layers"][1]["fields"] = Json::array(); }),
             ContainsSubstring("the graph has 1 of them, found 0"));
  CHECK_THAT(with([](Json& m) { m["layers"][1]["fields"] = {"maks"}; }),
             ContainsSubstring("\"maks\" is not in /fields"));
  CHECK_THAT(with([](Json& m) { m["fields"]["mask"]["type"] = "i64[b,5]"; }),
             ContainsSubstring("/layers/1/fields/0"));
  CHECK_THAT(with([](Json& m) { m["fields"]["mask"]["type"] = "i64[4]"; }),
             ContainsSubstring("expected b as the first size"));
  CHECK_THAT(with([](Json& m) { m["loss"]["fields"] = {"mask"}; }), !ContainsSubstring("accepted"));
  CHECK_THAT(with([](Json& m) { m["loss"]["graph"] = m["layers"][7]["graph"]; }),
             ContainsSubstring("/loss/graph"));
  CHECK_THAT(with([](Json& m) { m["loss"]["units"]["field"] = "mask"; }),
             ContainsSubstring("expected one of the loss's fields"));
  CHECK_THAT(with([](Json& m) { m["loss"]["units"]["from"] = 4; }), ContainsSubstring("/loss/units"));
}

TEST_CASE("a captured loss is PyTorch's, weighs by what counts, and adds nothing where nothing does",
          "[captured_fields]") {
  const c10::InferenceMode guard;
  const std::shared_ptr<const Loss> made = build(captured_model("masked")).loss;
  const Loss& loss = *made;
  REQUIRE(loss.counts_units());
  const at::Tensor labels = at::tensor({0, -100, 4, 2, -100, -100, 1, 3}, at::kLong).view({2, 4});
  const FieldTensors fields = batch_of(at::ones({2, 4}, at::kLong), labels);
  CHECK(loss.units(fields) == 5);
  const at::Tensor output = at::arange(40, at::kFloat).sin().view({2, 4, 5});

  at::Tensor leaf;
  at::Tensor expected;
  {
    const c10::InferenceMode normal(false);
    leaf = at::arange(40, at::kFloat).sin().view({2, 4, 5}).detach().requires_grad_();
    const at::Tensor known = at::tensor({0, -100, 4, 2, -100, -100, 1, 3}, at::kLong);
    expected = at::cross_entropy_loss(leaf.flatten(0, 1), known);
    (expected * 0.625).backward();
  }
  Kept kept;
  const LossValue value = loss.forward(output, fields, 0.625, &kept, false);
  CHECK(value.loss.item<double>() == expected.to(at::kDouble).item<double>() * 0.625);
  CHECK(at::equal(loss.backward(kept), leaf.grad()));
  CHECK(kept.for_input.empty());
  LossData from_memory(fields);
  from_memory.weights = at::tensor({0.625, 3.5}, at::kDouble);
  CHECK(at::equal(loss.forward(output, from_memory, 1, &kept, false).loss, value.loss));
  Kept by_number;
  (void)loss.forward(output, fields, 0.625, &by_number, false);
  CHECK(at::equal(loss.backward(kept, 1), loss.backward(by_number, 3.5)));
  CHECK(kept.for_weight.empty());
  // Once more without a backward, as in validation.
  CHECK(loss.forward(output, fields, 1, nullptr, true).loss.item<double>() ==
        expected.to(at::kDouble).item<double>());

  const FieldTensors nothing = batch_of(at::ones({2, 4}, at::kLong), at::full({2, 4}, -100, at::kLong));
  CHECK(loss.units(nothing) == 0);
  CHECK(loss.forward(output, nothing, 0, &kept, false).loss.item<double>() == 0);
  CHECK(at::equal(loss.backward(kept), at::zeros({2, 4, 5})));
}

}  // namespace
}  // namespace stagecraft::test::captured_field_cases
