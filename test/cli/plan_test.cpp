#include "stagecraft/base/json.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <cmath>
#include <utility>

using stagecraft::Json;
using stagecraft::test::CommandResult;

namespace {

const std::string kProfile = STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json";
const std::string kCluster = STAGECRAFT_TEST_DATA "/../../configs/clusters/one-machine-4-pcie.json";

/// With one device per stage, unless `more` says otherwise.
CommandResult made(const std::string& verb, const std::vector<std::string>& more) {
  std::vector<std::string> arguments{verb, "--profile", kProfile, "--cluster", kCluster, "--no-replicate"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return stagecraft::test::stagecraft(arguments);
}

}  // namespace

TEST_CASE("explain says why, and what else would bring", "[plan]") {
  const CommandResult result = made("explain", {"--micro-batch-size", "8", "--json"});
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
  const CommandResult schema = stagecraft::test::stagecraft({"schema", "explanation"});
  REQUIRE(schema.code == 0);
  for (const Json keys = Json::parse(schema.out)["required"]; const Json& key : keys) {
    CHECK(explanation.contains(key.get<std::string>()));
  }
}

TEST_CASE("--set is for a config", "[plan]") {
  for (const char* verb : {"plan", "explain", "compare"}) {
    const CommandResult refused = made(verb, {"--set", "seed=1"});
    CHECK(refused.code == 2);
    CHECK(stagecraft::test::says(refused.err, "--set: is for the keys of a run config, and none is given"));
  }
}

TEST_CASE("the user's cuts are the plan's", "[plan]") {
  const CommandResult result = made("plan", {"--micro-batch-size", "8", "--cuts", "1,4", "--json"});
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

TEST_CASE("a schedule's settings stand behind its name", "[plan]") {
  const auto schedule = [](const std::string& asked) {
    const CommandResult result = made("plan", {"--micro-batch-size", "8", "--schedule", asked, "--json"});
    INFO(result.err);
    REQUIRE(result.code == 0);
    return Json::parse(result.out)["plan"]["schedule"];
  };
  CHECK(schedule("1f1b:warmup_extra=2")["warmup_extra"] == 2);
  CHECK(schedule("pipedream:vertical_sync")["vertical_sync"] == true);
  CHECK(schedule("pipedream:vertical_sync=false")["vertical_sync"] == false);
  CHECK(schedule("pipedream:vertical_sync,vertical_sync=false")["vertical_sync"] == false);

  for (const auto& [asked, answer] : std::vector<std::pair<std::string, std::string>>{
           {"1f1b:warmup_xtra=2", "did you mean \"warmup_extra\"?"},
           {"1f1b:warmup_extra", "expected warmup_extra=N"},
           {"1f1b:warmup_extra=-1", "expected warmup_extra=N"},
           {"1f1b:warmup_extra=2x", "expected warmup_extra=N"},
           {"1f1b:vertical_sync", "1f1b takes the setting warmup_extra"},
           {"1f1b:warmup_extra=1,vertical_sync", "found \"vertical_sync\"; pipedream takes"},
           {"1f1b:", "1f1b takes the setting warmup_extra"},
           {"zb_h1:warmup_extra=1", "zb_h1 takes no settings"},
           {"pipedream:vertical_sync=no", "expected true or false"},
           {"1f1:warmup_extra=1", "did you mean \"1f1b\"?"},
           {"", "expected one of"}}) {
    const CommandResult wrong = made("plan", {"--micro-batch-size", "8", "--schedule", asked});
    INFO(asked << ": " << wrong.err);
    CHECK(wrong.code == 2);
    CHECK(wrong.out.empty());
    CHECK(stagecraft::test::says(wrong.err, answer));
  }
}
