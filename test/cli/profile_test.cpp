#include "stagecraft/base/json.h"
#include "test/support/catch.h"
#include "test/support/command.h"

using stagecraft::Json;
using stagecraft::test::CommandResult;
using stagecraft::test::ScratchFolder;

namespace {

const char* const kConfig = R"({
  "model": {"family": "mlp", "hidden": [16, 16]},
  "data": {"type": "synthetic", "samples": 64, "shape": [8], "classes": 4},
  "loss": {"type": "cross_entropy"},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "train_steps": 1, "threads_per_rank": 1
})";

CommandResult profile(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "profile");
  return stagecraft::test::stagecraft(arguments);
}

using stagecraft::test::says;

}  // namespace

TEST_CASE("profile measures a config's model and writes what plan reads", "[profile]") {
  const ScratchFolder folder;
  const std::string config = folder.write("run.json", kConfig);
  const std::string path = folder.path("profile.json");
  const CommandResult result =
      profile({config, "-o", path, "--micro-batch-sizes", "2", "--repeats", "3", "--links"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(says(result.out, "micro-batches of 2 samples"));
  CHECK(says(result.out, "micro-batches of 4 samples"));
  CHECK(says(result.out, "loss"));
  CHECK(says(result.out, "Link over local"));
  const Json json = stagecraft::json::parse_file(path);
  CHECK(json["repeats"] == 3);
  CHECK(json["optimizer_bytes_per_parameter_byte"] == 2.0);
  const std::string cluster = STAGECRAFT_TEST_DATA "/../../configs/clusters/laptop.json";
  CHECK(stagecraft::test::stagecraft(
            {"plan", "--profile", path, "--cluster", cluster, "--micro-batch-size", "2"})
            .code == 0);
}

TEST_CASE("profile --json prints the profile alone", "[profile]") {
  const ScratchFolder folder;
  const CommandResult result = profile({folder.write("run.json", kConfig), "--repeats", "2", "--json"});
  REQUIRE(result.code == 0);
  const Json json = Json::parse(result.out);
  CHECK(json["measurements"].size() == 1);
  CHECK(json["measurements"][0]["layers"].back()["name"] == "loss");
}

TEST_CASE("profile refuses before it measures", "[profile]") {
  const ScratchFolder folder;
  const std::string config = folder.write("run.json", kConfig);
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& message) {
    const CommandResult result = profile(arguments);
    INFO(result.err);
    CHECK(result.code == 2);
    CHECK(result.out.empty());
    CHECK(says(result.err, message));
  };
  refused({}, "CONFIG is required");
  refused({folder.path("nope.json")}, "cannot be opened");
  refused({config, "-o", "/nonexistent/p.json"}, "/nonexistent/p.json: cannot be written");
  refused({config, "--micro-batch-sizes", "0"}, "expected 1 to 1000000");
  refused({config, "--set", "model.hiden=[1]"}, "unknown key");
}
