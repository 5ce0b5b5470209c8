#include "base/json.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <string>
#include <utility>
#include <vector>

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
  CHECK(says(result.out.substr(result.out.find("Link over")), " (iqr "));
  const Json json = stagecraft::json::parse_file(path);
  CHECK(json["link"]["latency_spread_ms"].get<double>() > 0);
  CHECK(json["link"]["bytes_per_second_spread"].get<double>() > 0);
  CHECK(json["repeats"] == 3);
  CHECK(json["optimizer_bytes_per_parameter_byte"] == 2.0);
  const std::string cluster = STAGECRAFT_TEST_DATA "/../../configs/clusters/laptop.json";
  CHECK(stagecraft::test::stagecraft(
            {"plan", "--profile", path, "--cluster", cluster, "--micro-batch-size", "2"})
            .code == 0);
}

TEST_CASE("profile --links writes the cluster that plan reads", "[profile]") {
  const ScratchFolder folder;
  const std::string config = folder.write("run.json", kConfig);
  const std::string path = folder.path("profile.json"), cluster = folder.path("cluster.json");
  const CommandResult result =
      profile({config, "-o", path, "--repeats", "1", "--links", "--cluster-file", cluster});
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(says(result.out, "written to " + cluster + ", for `plan --cluster`"));
  const Json written = stagecraft::json::parse_file(cluster);
  CHECK(written["levels"].size() == 1);
  CHECK(written["memory_bytes"].get<double>() > 1e6);
  CHECK(stagecraft::test::stagecraft({"plan", "--profile", path, "--cluster", cluster}).code == 0);
  const CommandResult alone = profile({config, "--cluster-file", cluster});
  CHECK(alone.code == 2);
  CHECK(says(alone.err, "give --links too"));
  const CommandResult there = profile({config, "--links", "--cluster-file", config});
  CHECK(there.code == 2);
  CHECK(says(there.err, "run.json"));
}

TEST_CASE("a plan from a profile of another kind of device says so", "[profile]") {
  const ScratchFolder folder;
  const std::string config = folder.write("run.json", kConfig);
  const std::string path = folder.path("profile.json");
  REQUIRE(profile({config, "-o", path, "--repeats", "1"}).code == 0);
  const Json measured = stagecraft::json::parse_file(path);
  const auto said = [&](const std::string& verb, const Json& given, const std::string& device) {
    const CommandResult result = stagecraft::test::stagecraft(
        {verb, config, "--profile", folder.write("other.json", given.dump()), "--set", "device=" + device});
    INFO(result.err);
    CHECK(result.code == 0);
    return result.err;
  };
  for (const char* verb : {"plan", "compare", "explain"}) {
    for (const auto& [of, kind] : {std::pair{"cpu", "CPU"}, {"NVIDIA H100", "GPU"}, {"cuda", "GPU"}}) {
      Json other = measured;
      other["device"] = of;
      for (const char* device : {"cpu", "cuda"}) {
        const std::string err = said(verb, other, device);
        INFO(verb << ": profile of " << of << ", run on " << device << ": " << err);
        const bool fits = (std::string(of) == "cpu") == (std::string(device) == "cpu");
        CHECK(says(err, "the profile is of a ") != fits);
        const std::string what = std::string("the profile is of a ") + kind + " (\"device\": \"" + of + "\")";
        CHECK(says(err, what) != fits);
      }
    }
  }
  Json estimate = measured;
  estimate["estimated_from"] = "rates of a card";
  CHECK_FALSE(says(said("plan", estimate, "cuda"), "the profile is of"));
}

TEST_CASE("plan --set changes the config that is planned", "[profile]") {
  const ScratchFolder folder;
  const std::string config = folder.write("run.json", kConfig);
  const std::string path = folder.path("profile.json");
  REQUIRE(profile({config, "-o", path, "--repeats", "1"}).code == 0);
  const CommandResult planned =
      stagecraft::test::stagecraft({"plan", config, "--profile", path, "--set", "train_batch_size=32",
                                    "--set", "pipeline.stages=2", "--json"});
  INFO(planned.err);
  REQUIRE(planned.code == 0);
  const Json plan = Json::parse(planned.out).at("plan");
  CHECK(plan.at("micro_batches") == 8);
  CHECK(plan.at("stages").size() == 2);
  const CommandResult refused =
      stagecraft::test::stagecraft({"plan", config, "--profile", path, "--set", "model.hiden=[4]"});
  CHECK(refused.code == 2);
  CHECK(says(refused.err, "run.json with --set: /model/hiden: unknown key"));
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
  refused({config, "--micro-batch-sizes", "0"}, "expected whole numbers from 1 to 1000000");
  refused({config, "--set", "model.hiden=[1]"}, "unknown key");
}
