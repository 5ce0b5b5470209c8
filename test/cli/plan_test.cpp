#include "base/json.h"
#include "test/support/catch.h"
#include "test/support/command.h"

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

TEST_CASE("--set is for a config", "[plan]") {
  for (const char* verb : {"plan", "explain", "compare"}) {
    const CommandResult refused = made(verb, {"--set", "seed=1"});
    CHECK(refused.code == 2);
    CHECK(stagecraft::test::says(refused.err, "--set: is for the keys of a run config, and none is given"));
  }
}

TEST_CASE("an explanation has what its schema requires", "[plan]") {
  const CommandResult result = made("explain", {"--micro-batch-size", "8", "--json"});
  REQUIRE(result.code == 0);
  const Json explanation = Json::parse(result.out)["explanation"];
  const CommandResult schema = stagecraft::test::stagecraft({"schema", "explanation"});
  REQUIRE(schema.code == 0);
  for (const Json keys = Json::parse(schema.out)["required"]; const Json& key : keys) {
    CHECK(explanation.contains(key.get<std::string>()));
  }
}

TEST_CASE("a schedule's settings stand behind its name", "[plan]") {
  const auto schedule = [](const std::string& asked) {
    const CommandResult result = made("plan", {"--micro-batch-size", "8", "--schedule", asked, "--json"});
    INFO(result.err);
    REQUIRE(result.code == 0);
    return Json::parse(result.out)["plan"]["schedule"];
  };
  CHECK(schedule("pipedream:vertical_sync=false")["vertical_sync"] == false);

  for (const auto& [asked, answer] : std::vector<std::pair<std::string, std::string>>{
           {"1f1b:warmup_xtra=2", "did you mean \"warmup_extra\"?"},
           {"1f1b:warmup_extra", "expected warmup_extra=N"},
           {"1f1b:warmup_extra=1,warmup_extra=2", "the setting warmup_extra is given twice"},
           {"pipedream:vertical_sync,vertical_sync=false", "the setting vertical_sync is given twice"},
           {"1f1b:warmup_extra=-1", "expected warmup_extra=N"},
           {"1f1b:warmup_extra=2x", "expected warmup_extra=N"},
           {"1f1b:warmup_extra=1,vertical_sync", "found \"vertical_sync\"; pipedream takes"},
           {"1f1b:", "1f1b takes the setting warmup_extra"},
           {"zb_h1:warmup_extra=1", "zb_h1 takes no settings"},
           {"pipedream:vertical_sync=no", "expected true or false"},
           {"1f1:warmup_extra=1", "did you mean \"1f1b\"?"},
           {"", "--schedule: expected something, found an empty text"}}) {
    const CommandResult wrong = made("plan", {"--micro-batch-size", "8", "--schedule", asked});
    INFO(asked << ": " << wrong.err);
    CHECK(wrong.code == 2);
    CHECK(wrong.out.empty());
    CHECK(stagecraft::test::says(wrong.err, answer));
  }
}
