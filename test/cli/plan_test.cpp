#include "stagecraft/base/json.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <cmath>
#include <set>

using stagecraft::Json;
using stagecraft::test::CommandResult;
using stagecraft::test::ScratchFolder;

namespace {

const std::string kProfile = STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json";
const std::string kCluster = STAGECRAFT_TEST_DATA "/../../configs/clusters/one-machine-4-pcie.json";

/// With one device per stage, unless `more` says otherwise.
CommandResult plan(const std::vector<std::string>& more, const std::string& cluster = kCluster) {
  std::vector<std::string> arguments{"plan", "--profile", kProfile, "--cluster", cluster, "--no-replicate"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return stagecraft::test::stagecraft(arguments);
}

using stagecraft::test::says;

}  // namespace

TEST_CASE("plan over several schedules takes the fastest, --pareto shows time against memory", "[plan]") {
  const ScratchFolder folder;
  const std::string path = folder.path("plan.json");
  const CommandResult several = plan({"--micro-batch-size", "8", "--schedule", "1f1b,zb_h1", "-o", path});
  INFO(several.err);
  REQUIRE(several.code == 0);
  CHECK(stagecraft::json::parse_file(path)["schedule"]["name"] == "zb_h1");
  CHECK(stagecraft::test::stagecraft({"check", path}).code == 0);

  const CommandResult front = plan(
      {"--pareto", "--schedule", "1f1b,fill_drain", "--micro-batches", "auto", "--batch", "64", "--json"});
  INFO(front.err);
  REQUIRE(front.code == 0);
  const Json choices = Json::parse(front.out)["choices"];
  REQUIRE(choices.size() > 1);
  for (std::size_t i = 1; i < choices.size(); ++i) {
    CHECK(choices[i]["step_ms"] > choices[i - 1]["step_ms"]);
    CHECK(choices[i]["memory_bytes"] < choices[i - 1]["memory_bytes"]);
    CHECK(choices[i]["micro_batches"].get<int>() * choices[i]["micro_batch_size"].get<int>() == 64);
  }
  CHECK(Json::parse(front.out)["cap_step"] == 0.01);
  std::set<std::string> recomputed;
  for (const Json& choice : choices) recomputed.insert(choice["recompute"].get<std::string>());
  CHECK(recomputed.contains("none"));
  CHECK(recomputed.size() > 1);
  const CommandResult kept =
      plan({"--pareto", "--schedule", "1f1b", "--micro-batch-size", "8", "--recompute", "none", "--json"});
  REQUIRE(kept.code == 0);
  for (const Json& choice : Json::parse(kept.out)["choices"]) CHECK(choice["recompute"] == "none");
}

TEST_CASE("plan --jitter says how the best plans take to varying times", "[plan]") {
  const CommandResult json =
      plan({"--micro-batch-size", "8", "--jitter", "50", "--choose-by", "p95", "--json"});
  REQUIRE(json.code == 0);
  const Json jitter = Json::parse(json.out)["jitter"];
  CHECK(jitter["p95_ms"] >= jitter["p50_ms"]);
  CHECK(plan({"--micro-batch-size", "8", "--jitter", "0"}).code == 2);
}

TEST_CASE("plan --explain says why, and what else would bring", "[plan]") {
  const CommandResult result = plan({"--micro-batch-size", "8", "--explain", "--json"});
  REQUIRE(result.code == 0);
  const Json explanation = Json::parse(result.out)["explanation"];
  CHECK(explanation["cuts"].size() == 3);
  CHECK(explanation["cuts"][0]["layer"] == 3);
  CHECK(explanation["cuts"][0]["earlier"]["change"] > 0.1);
  double chain = 0;
  for (const Json& part : explanation["chain"]) chain += part["ms"].get<double>();
  CHECK(std::abs(chain - explanation["step_ms"].get<double>()) < 1e-6);
  CHECK(explanation["what_if"][0]["change"] == "more_devices");
  CHECK(explanation["what_if"][0]["counts"] == Json{5});
  const CommandResult schema = stagecraft::test::stagecraft({"plan", "--schema", "explanation"});
  REQUIRE(schema.code == 0);
  for (const Json& key : Json::parse(schema.out)["required"]) {
    CHECK(explanation.contains(key.get<std::string>()));
  }

  const ScratchFolder folder;
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--explain", "--pareto"},
        {"--explain", "--schedule", "all", "--micro-batch-size", "8"},
        {"--explain", "--schedule", "1f1b,zb_h1", "--micro-batch-size", "8"},
        {"--explain=yes please", "--micro-batch-size", "8"},
        {"--explain", "--replan", folder.path("no run")},
        {"--explain", "--cost", "pipedream"},
        {"--explian", "--micro-batch-size", "8"}}) {
    const CommandResult wrong = plan(more);
    INFO(more.back() << ": " << wrong.err);
    CHECK(wrong.code == 2);
    CHECK(wrong.out.empty());
    CHECK(says(wrong.err, "--explain"));
  }
}

TEST_CASE("the user's cuts are the plan's", "[plan]") {
  const CommandResult result = plan({"--micro-batch-size", "8", "--cuts", "1,4", "--json"});
  REQUIRE(result.code == 0);
  const Json json = Json::parse(result.out);
  CHECK(json["plan"]["stages"][1]["first_layer"] == 1);
  CHECK(json["plan"]["stages"][2]["first_layer"] == 4);
}

TEST_CASE("replicas are planned where nobody says that the engine will run it", "[plan]") {
  const auto replicas = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"plan",   "--profile",          kProfile, "--cluster",
                                       kCluster, "--micro-batch-size", "8",      "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = stagecraft::test::stagecraft(arguments);
    INFO(result.err);
    REQUIRE(result.code == 0);
    const Json json = Json::parse(result.out);
    std::vector<std::size_t> widths;
    for (const Json& stage : json["plan"]["stages"]) widths.push_back(stage["ranks"].size());
    CHECK(json["proof"]["optimal"] == true);
    return widths;
  };
  // Four devices without a bubble beat four stages with one.
  CHECK(replicas({}) == std::vector<std::size_t>{4});
  CHECK(replicas({"--replicate"}) == std::vector<std::size_t>{4});
  CHECK(replicas({"--no-replicate"}) == std::vector<std::size_t>{1, 1, 1, 1});
  CHECK(replicas({"--widths", "3,1"}) == std::vector<std::size_t>{3, 1});
}
