// `export`: which tensors, under which names and types, in which files; and what is refused.

#include "base/files.h"
#include "models/tensors/safetensors.h"
#include "models/tensors/safetensors_writer.h"
#include "test/cli/train_cases.h"
#include "test/models/captured_folder.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <csignal>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::test {
using Catch::Matchers::ContainsSubstring;
namespace {

/// A run of a captured model in `folder`'s `run`.
void trained(const ScratchFolder& folder, const std::string& model) {
  Json config = tiny_run(folder);
  config["model"] = {{"family", "captured"}, {"path", model}};
  config["pipeline"] = {{"stages", 1}};
  const CommandResult result = train(folder, config);
  INFO(result.err);
  REQUIRE(result.code == 0);
}

CommandResult exported(const ScratchFolder& folder, const std::string& out,
                       std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"export", folder.path("run"), "-o", folder.path(out)});
  return stagecraft(more);
}

std::string checkpoint(const ScratchFolder& folder, const std::string& file) {
  return folder.path("run/checkpoints/step-00000004/" + file);
}

/// Nothing beside the outputs that are expected.
std::set<std::string> entries(const ScratchFolder& folder) {
  const std::vector<std::string> names = names_in(folder.path("."));
  return {names.begin(), names.end()};
}

}  // namespace

TEST_CASE("an export has the run's tensors under PyTorch's names, and what no layer trains", "[export]") {
  const ScratchFolder folder;
  const std::string model =
      edited_copy(folder, "norm",
                  {.manifest =
                       [](Json& manifest) {
                         manifest["untrained"] = {{"pooler.weight", "f32[2]"}};
                         manifest["same_as"] = {
                             {"again.weight", "2.weight"}, {"2.bias", "0.bias"}, {"p", "pooler.weight"}};
                       },
                   .weights = [](auto& weights) { weights["pooler.weight"] = at::full({2}, 7.0); }});
  trained(folder, model);
  const CommandResult result = exported(folder, "out");
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(says(result.out, "out: 12 tensors of step 4"));
  CHECK(names_in(folder.path("out")) ==
        std::vector<std::string>{"model.safetensors", "stagecraft_export.json"});
  const SafetensorsFile file = read_safetensors(folder.path("out/model.safetensors"));
  CHECK(file.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  const SafetensorsFile first = read_safetensors(checkpoint(folder, "0.safetensors"));
  const SafetensorsFile norm = read_safetensors(checkpoint(folder, "1.safetensors"));
  const SafetensorsFile last = read_safetensors(checkpoint(folder, "2.safetensors"));
  CHECK(file.tensors.at("0.weight").equal(first.tensors.at("parameter/0.weight")));
  CHECK(file.tensors.at("1.running_var").equal(norm.tensors.at("buffer/1.running_var")));
  CHECK(file.tensors.at("1.num_batches_tracked").item<std::int64_t>() == 16);
  CHECK(file.tensors.at("again.weight").equal(last.tensors.at("parameter/2.weight")));
  CHECK(
      file.tensors.at("2.bias").equal(last.tensors.at("parameter/2.bias")));  // a copy that went its own way
  CHECK(file.tensors.at("pooler.weight").eq(7).all().item<bool>());
  CHECK(file.tensors.at("p").eq(7).all().item<bool>());
}

TEST_CASE("buffers that are not persistent stay out of an export", "[export]") {
  const ScratchFolder folder;
  const std::string model =
      edited_copy(folder, "norm",
                  {.weights = [](auto& weights) { weights.erase("1.running_mean"); },
                   .constants = [](auto& constants) { constants["1.running_mean"] = at::zeros({6}); }});
  trained(folder, model);
  REQUIRE(exported(folder, "out").code == 0);
  const SafetensorsFile file = read_safetensors(folder.path("out/model.safetensors"));
  CHECK_FALSE(file.tensors.contains("1.running_mean"));
  CHECK(file.tensors.contains("1.running_var"));
}

TEST_CASE("shards, other types, and Hugging Face's files", "[export]") {
  const ScratchFolder folder;
  const std::string model = edited_copy(folder, "norm", {});
  make_folder(model + "/hugging_face");
  write_file_atomically(model + "/hugging_face/config.json", R"({"dtype": "float32", "model_type": "x"})");
  write_file_atomically(model + "/hugging_face/vocab.txt", "a\nb\n");
  write_file_atomically(model + "/hugging_face/model.safetensors", "no weights of ours");
  trained(folder, model);
  const CommandResult result = exported(folder, "out", {"--dtype", "bfloat16", "--shard", "0.1KB", "--json"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const Json about = Json::parse(result.out);
  CHECK(about["dtype"] == "bfloat16");
  CHECK(Json::parse(read_text_file(folder.path("out/config.json"))) ==
        Json{{"dtype", "bfloat16"}, {"model_type", "x"}});
  CHECK(read_text_file(folder.path("out/vocab.txt")) == "a\nb\n");
  const Json index = Json::parse(read_text_file(folder.path("out/model.safetensors.index.json")));
  CHECK(index["metadata"]["total_size"] == about["bytes"]);
  std::int64_t bytes = 0;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const SafetensorsFile shard = read_safetensors(folder.path("out/" + file.get<std::string>()));
    const at::Tensor& tensor = shard.tensors.at(name);
    CHECK(tensor.scalar_type() == (name == "1.num_batches_tracked" ? at::kLong : at::kBFloat16));
    bytes += static_cast<std::int64_t>(tensor.nbytes());
    std::size_t held = 0;
    for (const auto& [other, its] : shard.tensors) held += its.nbytes();
    CHECK((held <= 100 || shard.tensors.size() == 1));
  }
  CHECK(about["bytes"] == bytes);
  CHECK(index["weight_map"].size() == 9);

  // Again, over it: fewer files, and none of the old ones.
  REQUIRE(exported(folder, "out").code == 0);
  CHECK(names_in(folder.path("out")) ==
        std::vector<std::string>{"config.json", "model.safetensors", "stagecraft_export.json", "vocab.txt"});
}

TEST_CASE("a model of built-in layers is exported under their names", "[export]") {
  const ScratchFolder folder;
  REQUIRE(train(folder, tiny_run(folder)).code == 0);
  REQUIRE(
      stagecraft({"export", folder.path("run/checkpoints/step-00000004"), "-o", folder.path("out")}).code ==
      0);
  const SafetensorsFile file = read_safetensors(folder.path("out/model.safetensors"));
  CHECK(file.tensors.size() == 6);
  CHECK(
      file.tensors.at("output.weight")
          .equal(read_safetensors(checkpoint(folder, "output.safetensors")).tensors.at("parameter/weight")));
  check_refused(
      stagecraft({"export", folder.path("run"), "--model", captured_model("norm"), "-o", folder.path("x")}),
      2, "--model: is for captured models");
}

TEST_CASE("exports that are refused leave nothing behind, and what was there as it was", "[export]") {
  const ScratchFolder folder;
  const std::string model = edited_copy(folder, "tiny", {});
  trained(folder, model);
  REQUIRE(exported(folder, "out").code == 0);
  const std::string before = read_text_file(folder.path("out/model.safetensors"));
  const std::set<std::string> there = entries(folder);
  check_refused(exported(folder, "x", {"--step", "3"}), 2, "has no checkpoint of step 3; it has those of 4");
  check_refused(exported(folder, "x", {"--shard", "5XB"}), 2, "expected a size like 5GB");
  check_refused(exported(folder, "x", {"--shard", "0"}), 2, "expected a size like 5GB");
  check_refused(exported(folder, "x", {"--dtype", "float33"}), 2, "did you mean \"float32\"?");
  check_refused(exported(folder, "x", {"--model", folder.path("none")}), 2, "give --model FOLDER");
  check_refused(exported(folder, "x", {"--model", captured_model("norm")}), 2, "is it of another model?");
  check_refused(exported(folder, "model"), 2, "which no export wrote");
  check_refused(exported(folder, "run.json"), 2, "exists and is no folder");
  check_refused(
      stagecraft({"export", folder.path("model"), "-o", folder.path("x")}), 2,
      "is a model folder that stagecraft-capture made; a run directory or a checkpoint is needed here");
  write_file_atomically(folder.path("out/mine.txt"), "mine");
  check_refused(exported(folder, "out"), 2, "holds mine.txt, which no export wrote");
  REQUIRE(storage().remove(folder.path("out/mine.txt")) == std::error_code());

  std::string bytes = read_text_file(checkpoint(folder, "2.safetensors"));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  (void)folder.write("run/checkpoints/step-00000004/2.safetensors", bytes);
  check_refused(exported(folder, "out"), 2, "2.safetensors: is corrupt");
  CHECK(entries(folder) == there);
  CHECK(read_text_file(folder.path("out/model.safetensors")) == before);
}

TEST_CASE("an export that a signal stops leaves nothing behind", "[export]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["model"]["hidden"] = std::vector<int>(150, 4);
  REQUIRE(train(folder, config).code == 0);
  const std::set<std::string> before = entries(folder);
  // A file per tensor, each synced; the signal comes when the second one is there.
  const CommandResult result =
      shell(folder, fmt::format("{{}} export {0} -o {1} --shard 1 & p=$!; i=0; while [ $i -lt 5000 ] && ! ls "
                                "{1}.*.part/model-00002-* > {2} 2>&1; do sleep 0.002; i=$((i+1)); done; "
                                "kill -TERM $p; wait $p",
                                folder.path("run"), folder.path("out"), folder.path("seen")));
  INFO(result.err);
  CHECK(result.code == 128 + SIGTERM);
  CHECK_THAT(read_text_file(folder.path("seen")), ContainsSubstring("model-00002-of-"));
  std::set<std::string> after = entries(folder);
  for (const char* name : {"seen", "shell.out", "shell.err"}) after.erase(name);
  CHECK(after == before);
}

TEST_CASE("training says what no layer reads of weights from elsewhere", "[export]") {
  const ScratchFolder folder;
  trained(folder, captured_model("tiny"));
  REQUIRE(exported(folder, "out").code == 0);
  const auto said = [&](int more) {
    const SafetensorsFile file = read_safetensors(folder.path("out/model.safetensors"));
    std::vector<std::pair<std::string, at::Tensor>> tensors(file.tensors.begin(), file.tensors.end());
    for (int i = 0; i < more; ++i) tensors.emplace_back(fmt::format("other{}", i), at::ones({2}));
    write_safetensors(folder.path("more.safetensors"), tensors);
    Json config = tiny_run(folder);
    config["run_dir"] = folder.path(fmt::format("with{}", more));
    config["model"] = {{"family", "captured"},
                       {"path", captured_model("tiny")},
                       {"weights", folder.path("more.safetensors")}};
    config["pipeline"] = {{"stages", 1}};
    const CommandResult result = train(folder, config);
    REQUIRE(result.code == 0);
    return result.out;
  };
  CHECK_THAT(said(0), !ContainsSubstring("no layer reads"));
  CHECK_THAT(said(1), ContainsSubstring("no layer reads 1 of the 5 tensors of " +
                                        folder.path("more.safetensors") + ": other0\n"));
  CHECK_THAT(said(5),
             ContainsSubstring("no layer reads 5 of the 9 tensors of " + folder.path("more.safetensors") +
                               ": other0, other1, other2 and 2 more\n"));
}

TEST_CASE("numbers that float16 cannot hold are refused", "[export]") {
  const ScratchFolder folder;
  trained(folder, edited_copy(folder, "tiny",
                              {.manifest =
                                   [](Json& manifest) {
                                     manifest["untrained"] = {{"large", "f32[2]"}};
                                   },
                               .weights = [](auto& weights) { weights["large"] = at::full({2}, 1e6); }}));
  check_refused(exported(folder, "x", {"--dtype", "float16"}), 2,
                "\"large\" holds numbers that float16 cannot");
  CHECK_FALSE(is_there(folder.path("x")));
  CHECK(exported(folder, "x", {"--dtype", "bfloat16"}).code == 0);
}

}  // namespace stagecraft::test
