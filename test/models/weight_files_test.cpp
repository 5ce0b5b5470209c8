// Where a captured model's weights may lie, under which names, and what is refused.

#include "models/captured/model_folder.h"
#include "test/models/captured_folder.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

namespace stagecraft::test::weight_files_cases {
namespace {

using Catch::Matchers::ContainsSubstring;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

Named tiny_weights() {
  const auto tensors = read_safetensors(captured_model("tiny") + "/weights.safetensors").tensors;
  return {tensors.begin(), tensors.end()};
}

at::Tensor tiny(const std::string& name) {
  return read_safetensors(captured_model("tiny") + "/weights.safetensors").tensors.at(name);
}

std::string refusal(const std::string& model, const std::string& weights) {
  try {
    (void)captured::read_model_folder(model, weights);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

/// `tensors` in two files, cut after the first, and their index.
std::string shards(const ScratchFolder& folder, const Named& tensors) {
  Json map;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    map[tensors[i].first] = i == 0 ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
  }
  write_safetensors(folder.path("model-00001-of-00002.safetensors"), {tensors.front()});
  write_safetensors(folder.path("model-00002-of-00002.safetensors"), {tensors.begin() + 1, tensors.end()});
  return folder.write("model.safetensors.index.json",
                      Json{{"metadata", {{"total_size", 100}}}, {"weight_map", map}}.dump());
}

}  // namespace

TEST_CASE("weights from elsewhere: a file, an index, or the folder of either, in any floating-point type",
          "[weight_files]") {
  const ScratchFolder file, index;
  Named tensors = tiny_weights();
  for (auto& [name, tensor] : tensors) tensor = tensor.mul(3).to(at::kBFloat16);
  tensors.emplace_back("unread", at::ones({3}));
  write_safetensors(file.path("model.safetensors"), tensors);
  for (const std::string& from :
       {file.path("model.safetensors"), file.path("."), shards(index, tensors), index.path(".")}) {
    INFO(from);
    const auto model = captured::read_model_folder(captured_model("tiny"), from);
    const at::Tensor weight = model->weights.at("0.weight");
    CHECK(weight.scalar_type() == at::kFloat);
    CHECK(weight.equal(tiny("0.weight").mul(3).to(at::kBFloat16).to(at::kFloat)));
    CHECK(model->weights.unread() == std::vector<std::string>{"unread"});
  }
}

TEST_CASE("a file that no tensor is read from need not be there", "[weight_files]") {
  const ScratchFolder folder;
  Named tensors = tiny_weights();
  tensors.emplace(tensors.begin(), "unread", at::ones({3}));
  const std::string index = shards(folder, tensors);
  REQUIRE(storage().remove(folder.path("model-00001-of-00002.safetensors")) == std::error_code());
  CHECK(refusal(captured_model("tiny"), index) == "accepted");
  REQUIRE(storage().remove(folder.path("model-00002-of-00002.safetensors")) == std::error_code());
  CHECK_THAT(refusal(captured_model("tiny"), index),
             ContainsSubstring("model-00002-of-00002.safetensors: cannot be opened"));
}

TEST_CASE("names without the base model's prefix, with it, and of copies", "[weight_files]") {
  const ScratchFolder folder, files;
  const std::string path = edited_copy(folder, "tiny", {.manifest = [](Json& manifest) {
                                         manifest["prefix"] = "0.";
                                         manifest["same_as"] = {{"shared.bias", "2.bias"}};
                                       }});
  const auto from = [&](const Named& tensors) {
    write_safetensors(files.path("model.safetensors"), tensors);
    return files.path("model.safetensors");
  };
  // A base model's file: the head ("2.") begins as in the model folder.
  const auto base =
      captured::read_model_folder(path, from({{"weight", at::ones({16, 8})}, {"bias", at::ones({16})}}));
  CHECK(base->weights.at("0.weight").eq(1).all().item<bool>());
  CHECK(base->weights.at("2.weight").equal(tiny("2.weight")));
  // With a name that has the prefix it is the whole model's, and must be all of it.
  CHECK_THAT(refusal(path, from({{"0.weight", at::ones({16, 8})}, {"0.bias", at::ones({16})}})),
             ContainsSubstring("has no tensor \"2.bias\""));
  const auto copies = captured::read_model_folder(path, from({{"0.weight", at::ones({16, 8})},
                                                              {"0.bias", at::ones({16})},
                                                              {"2.weight", at::ones({4, 16})},
                                                              {"shared.bias", at::full({4}, 7.0)}}));
  CHECK(copies->weights.at("2.bias").eq(7).all().item<bool>());
}

TEST_CASE("a model folder without weights is read, and says so when they are asked for", "[weight_files]") {
  const ScratchFolder folder;
  const std::string path = edited_copy(folder, "tiny", {.weights = [](auto& weights) { weights.clear(); }});
  const auto model = captured::read_model_folder(path);
  CHECK_THROWS_WITH(model->weights.at("0.weight"), ContainsSubstring("has no weights: name a file"));
  CHECK(captured::read_model_folder(path, captured_model("tiny"))
            ->weights.at("0.weight")
            .equal(tiny("0.weight")));
}

TEST_CASE("what no layer trains is found where the weights are, then in the folder; folded values must agree",
          "[weight_files]") {
  const ScratchFolder folder, files;
  const std::string path =
      edited_copy(folder, "dropout",
                  {.manifest =
                       [](Json& manifest) {
                         manifest["untrained"] = {{"pooler", "f32[2]"}, {"mean", "f32[4]"}};
                       },
                   .weights = [](auto& weights) { weights["pooler"] = at::ones({2}); },
                   .constants = [](auto& constants) { constants["mean"] = at::arange(4, at::kFloat); }});
  const auto own = captured::read_model_folder(path);
  CHECK(own->weights.at("pooler").eq(1).all().item<bool>());
  CHECK(own->weights.at("mean").equal(at::arange(4, at::kFloat)));
  auto tensors = read_safetensors(path + "/weights.safetensors").tensors;
  const auto from = [&] {
    write_safetensors(files.path("model.safetensors"), {tensors.begin(), tensors.end()});
    return files.path("model.safetensors");
  };
  tensors["pooler"] = at::full({2}, 2.0);
  tensors["mean"] = at::arange(4, at::kFloat);
  CHECK(captured::read_model_folder(path, from())->weights.at("pooler").eq(2).all().item<bool>());
  tensors["mean"][3] = 9;
  CHECK_THAT(refusal(path, from()),
             ContainsSubstring("\"mean\" has other values than the capture made constants of"));
  tensors["mean"][3] = 3;
  tensors["pooler"] = at::ones({3});
  CHECK_THAT(refusal(path, from()),
             ContainsSubstring("tensor \"pooler\": expected f32[2], found [3] of F32"));
}

TEST_CASE("weights that are refused", "[weight_files]") {
  const ScratchFolder folder;
  const std::string model = captured_model("tiny");
  const auto with = [&](const std::string& name, const at::Tensor& tensor) {
    Named tensors = tiny_weights();
    for (auto& [known, value] : tensors) {
      if (known == name) value = tensor;
    }
    write_safetensors(folder.path("model.safetensors"), tensors);
    return refusal(model, folder.path("model.safetensors"));
  };
  CHECK_THAT(with("2.bias", at::ones({1, 4})),
             ContainsSubstring("model.safetensors: tensor \"2.bias\": expected f32[4], found [1, 4] of F32"));
  CHECK_THAT(with("2.bias", at::ones({4}, at::kLong)),
             ContainsSubstring("expected f32[4], found [4] of I64"));
  CHECK_THAT(refusal(model, folder.path("none.safetensors")),
             ContainsSubstring("none.safetensors: cannot be opened"));
  const ScratchFolder empty;
  CHECK_THAT(refusal(model, empty.path(".")), ContainsSubstring("has neither model.safetensors nor"));
  Named renamed = tiny_weights();
  renamed.front().first = "0.biass";
  write_safetensors(folder.path("model.safetensors"), renamed);
  CHECK_THAT(refusal(model, folder.path("model.safetensors")),
             ContainsSubstring("has no tensor \"0.bias\"; did you mean \"0.biass\"?"));

  (void)folder.write("short.safetensors", "1234567");
  CHECK_THAT(refusal(model, folder.path("short.safetensors")),
             ContainsSubstring("is 7 bytes, no safetensors file"));
  (void)folder.write("long.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{}");
  CHECK_THAT(refusal(model, folder.path("long.safetensors")), ContainsSubstring("says its header is"));
  const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  (void)folder.write("outside.safetensors", std::string(1, static_cast<char>(header.size())) +
                                                std::string(7, '\0') + header + "1234");
  CHECK_THAT(refusal(model, folder.path("outside.safetensors")),
             ContainsSubstring("tensor \"a\": its data ends at byte 8, the file holds 4"));

  for (const char* file : {"../weights.safetensors", "/etc/passwd.safetensors", ".safetensors",
                           "a/b.safetensors", "b.bin", ""}) {
    const std::string index =
        folder.write("model.safetensors.index.json", Json{{"weight_map", {{"0.bias", file}}}}.dump());
    CHECK_THAT(
        refusal(model, index),
        ContainsSubstring("index.json: /weight_map/0.bias: expected a .safetensors file beside the index"));
  }
  const std::string lies = folder.write("model.safetensors.index.json",
                                        Json{{"weight_map", {{"0.bias", "empty.safetensors"}}}}.dump());
  write_safetensors(folder.path("empty.safetensors"), {});
  CHECK_THAT(refusal(model, lies), ContainsSubstring("empty.safetensors: has no tensor \"0.bias\", though"));
}

}  // namespace stagecraft::test::weight_files_cases
