// `train` with models captured from PyTorch.

#include "base/json.h"
#include "test/cli/train_cases.h"
#include "test/support/catch.h"

#include <filesystem>
#include <map>
#include <string>

namespace stagecraft::test {
namespace {

Json captured_run(const ScratchFolder& folder, const std::string& model, const Json& pipeline) {
  Json config = tiny_run(folder);
  config["model"] = {{"family", "captured"}, {"path", STAGECRAFT_CAPTURED_MODELS "/" + model}};
  config["pipeline"] = pipeline;
  return config;
}

/// All weights of the last checkpoint.
std::map<std::string, std::string> weights(const ScratchFolder& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder.path("run/checkpoints/step-00000004"))) {
    if (entry.path().extension() != ".safetensors") continue;
    files[entry.path().filename().string()] = read_text_file(entry.path().string());
  }
  return files;
}

}  // namespace

TEST_CASE("a captured model trains the same on one stage, and on two with split backward",
          "[train_captured]") {
  for (const char* model : {"tiny", "norm", "dropout"}) {
    INFO(model);
    const ScratchFolder one, two;
    const CommandResult whole = train(one, captured_run(one, model, {{"stages", 1}}));
    INFO(whole.err);
    REQUIRE(whole.code == 0);
    const Json split{{"schedule", "zb_h1"}, {"cuts", {1}}};
    const CommandResult halves = train(two, captured_run(two, model, split));
    INFO(halves.err);
    REQUIRE(halves.code == 0);
    CHECK(says(halves.out, "Plan: 2 stages"));
    CHECK(facts(one.path("run")) == facts(two.path("run")));
    CHECK(weights(one).size() >= 2);
    CHECK(weights(one) == weights(two));
  }
}

TEST_CASE("replicas of captured batch norm average statistics, not counters", "[train_captured]") {
  const ScratchFolder folder;
  const CommandResult result =
      train(folder, captured_run(folder, "norm", {{"schedule", "1f1b"}, {"cuts", {1}}, {"widths", {1, 2}}}));
  INFO(result.err);
  CHECK(result.code == 0);
}

TEST_CASE("a run of a captured model goes on with the folder elsewhere, but with no other model",
          "[train_captured]") {
  const ScratchFolder folder;
  Json config = captured_run(folder, "norm", {{"stages", 1}});
  REQUIRE(train(folder, config).code == 0);
  const std::string moved = folder.path("moved");
  std::filesystem::copy(STAGECRAFT_CAPTURED_MODELS "/norm", moved, std::filesystem::copy_options::recursive);
  config["model"]["path"] = moved;
  config["train_steps"] = 6;
  const CommandResult resumed = train(folder, config, {"--resume"});
  INFO(resumed.err);
  CHECK(resumed.code == 0);
  CHECK(says(resumed.out, "Done: "));
  config["model"]["path"] = STAGECRAFT_CAPTURED_MODELS "/tiny";
  check_refused(train(folder, config, {"--resume"}), 2, "the model has changed");
}

TEST_CASE("a captured model that is not there or not whole is refused", "[train_captured]") {
  const ScratchFolder folder;
  Json config = captured_run(folder, "none", {{"stages", 1}});
  check_refused(train(folder, config), 2, "/none: no such file or folder");
  config = captured_run(folder, "tiny", {{"stages", 1}});
  config["data"]["shape"] = {9};
  check_refused(train(folder, config), 2, "/model/path: ");
  config = captured_run(folder, "tiny", {{"stages", 1}});
  config["bf16"] = {{"enabled", true}};
  check_refused(train(folder, config), 2, "captured in other types");
  // Each of its files, removed or cut short, is named behind the key that named the folder.
  namespace fs = std::filesystem;
  const std::string copy = folder.path("model");
  config = captured_run(folder, "dropout", {{"stages", 1}});
  config["model"]["path"] = copy;
  int files = 0;
  const auto fresh = [&] {
    fs::remove_all(copy);
    fs::copy(STAGECRAFT_CAPTURED_MODELS "/dropout", copy, fs::copy_options::recursive);
  };
  fresh();
  for (const auto& entry : fs::recursive_directory_iterator(STAGECRAFT_CAPTURED_MODELS "/dropout")) {
    if (!entry.is_regular_file()) continue;
    ++files;
    const std::string file = copy + "/" + fs::relative(entry, STAGECRAFT_CAPTURED_MODELS "/dropout").string();
    CAPTURE(file);
    if (file.ends_with("/weights.safetensors")) {  // a folder may be without; a config names others then
      fs::resize_file(file, 9);
      check_refused(train(folder, config), 2, "run.json: /model/path: " + file + ": ");
    } else if (!file.ends_with("/manifest.json")) {
      fs::remove(file);
      check_refused(train(folder, config), 2, "run.json: /model/path: " + file + ": ");
      folder.write(fs::relative(file, folder.path("")).string(), "{");
      check_refused(train(folder, config), 2, "run.json: /model/path: " + file + ": ");
    } else {
      folder.write(fs::relative(file, folder.path("")).string(), "{\"format\": 1,}");
      check_refused(train(folder, config), 2, "run.json: /model/path: ");
    }
    fresh();
  }
  CHECK(files >= 4);
  config["model"]["weights"] = folder.write("others.safetensors", "none");
  check_refused(train(folder, config), 2, "run.json: /model/weights: " + folder.path("others.safetensors"));
}

}  // namespace stagecraft::test
