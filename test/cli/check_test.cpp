#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "test/cli/sample_plan.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <fmt/format.h>

using stagecraft::Json;
using stagecraft::test::changed_plan;
using stagecraft::test::CommandResult;
using stagecraft::test::kPlan;
using stagecraft::test::ScratchFolder;

namespace {

CommandResult check(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "check");
  return stagecraft::test::stagecraft(arguments);
}

using stagecraft::test::says;

}  // namespace

TEST_CASE("a small plan of very many actions is refused before they are made", "[check]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, [](Json& json) {
    json["micro_batches"] = 1'000'000;
    const Json last = json["stages"].back();
    for (int s = static_cast<int>(json["stages"].size()); s < 64; ++s) {
      Json stage = last;
      stage["first_layer"] = json["stages"].back()["last_layer"];
      stage["last_layer"] = stage["first_layer"].get<int>() + 1;
      stage["ranks"] = {s};
      json["stages"].push_back(stage);
    }
    for (const char* key : {"costs", "predicted"}) json.erase(key);
  });
  for (const char* verb : {"check", "convert"}) {
    INFO(verb);
    const CommandResult result = stagecraft::test::stagecraft({verb, plan});
    CHECK(result.code == 2);
    CHECK(says(result.err, "64 stages and 1000000 micro-batches make at least 128000000 actions"));
  }
  CHECK(check({plan, "--micro-batches", "4"}).code == 0);
}

TEST_CASE("check --json prints one document with in-flight, versions, slots and memory", "[check]") {
  const CommandResult result = check({kPlan, "--json"});
  REQUIRE(result.code == 0);
  const Json json = Json::parse(result.out);
  CHECK(json["accepted"] == true);
  CHECK(json["least_slots_per_channel"] == 3);
  REQUIRE(json["proof"].size() == 4);
  REQUIRE(json["memory"].size() == 4);
  for (int s = 0; s < 4; ++s) {
    CHECK(json["proof"][static_cast<std::size_t>(s)]["in_flight"] == 4 - s);  // 1F1B keeps p - s
    CHECK(json["memory"][static_cast<std::size_t>(s)]["peak_bytes"] > 16'000'000);
  }
}

TEST_CASE("check names the transport it proved, and is accepted without announcements only on a condition",
          "[check]") {
  const auto waits = [](const std::string& transport) {
    const CommandResult result = check({kPlan, "--json", "--transport", transport});
    INFO(result.err);
    const Json json = Json::parse(result.out);
    CHECK(json["transport"] == transport);
    return json;
  };
  CHECK(Json::parse(check({kPlan, "--json"}).out)["transport"] == "rendezvous");
  CHECK(waits("nccl,pair")["accepted"] == false);
  CHECK(waits("eager")["accepted"] == true);
  CHECK(waits("nccl")["device_waits"]["safe"] == true);
  CHECK(waits("nccl,unannounced")["device_waits"]["safe"] == false);
  const std::string condition = " only where no host waits for its whole device";
  CHECK(
      says(check({kPlan, "--transport", "nccl,unannounced"}).out, "Accepted" + condition + ": it finishes"));
  for (const char* safe : {"nccl", "eager", "rendezvous"}) {
    const std::string said = check({kPlan, "--transport", safe}).out;
    CHECK(says(said, "Accepted: it finishes"));
    CHECK_FALSE(says(said, condition));
  }
}

TEST_CASE("check prints a row of the table of waits in docs/design/gpu.md", "[check]") {
  const CommandResult result =
      check({kPlan, "--micro-batches", "16", "--json", "--transport", "nccl,unannounced"});
  REQUIRE(result.code == 0);
  const Json waits = Json::parse(result.out)["device_waits"];
  const std::string row =
      fmt::format("| 1f1b | 4 | {} | {} | {} | {} |", waits["places"].get<int>(),
                  waits["receives"].get<int>(), waits["sends"].get<int>(), waits["sums"].get<int>());
  INFO(row);
  CHECK(says(stagecraft::read_file(STAGECRAFT_TEST_DATA "/../../docs/design/gpu.md"), row));
}

TEST_CASE("check takes other micro-batches and slots", "[check]") {
  CHECK(Json::parse(check({kPlan, "--json", "--micro-batches", "2"}).out)["proof"][0]["in_flight"] == 2);
  CHECK(Json::parse(check({kPlan, "--json", "--slots", "5"}).out)["slots_per_channel"] == 5);
}

TEST_CASE("check shows the staleness of an asynchronous plan", "[check]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, [](Json& p) {
    p["schedule"]["name"] = "pipedream";
    p["micro_batches"] = 1;
  });
  const CommandResult result = check({plan, "--json"});
  REQUIRE(result.code == 0);
  const Json json = Json::parse(result.out);
  for (int s = 0; s < 4; ++s) {
    CHECK(json["proof"][static_cast<std::size_t>(s)]["staleness_max"] == 3 - s);
    CHECK(json["proof"][static_cast<std::size_t>(s)]["versions"] == 4 - s);
  }
}

TEST_CASE("check shows the least slots channel by channel", "[check]") {
  const Json json = Json::parse(check({kPlan, "--json"}).out);
  CHECK(json["least_slots"]["exact"] == true);
  int total = 0;
  for (const Json& channel : json["channels"]) {
    total += channel["least"].get<int>();
    CHECK(channel["slots"] >= channel["least"]);
    // 1F1B over four stages: rank r reads 4 - r activations at once, and one gradient.
    if (channel["payload"] == "activation") CHECK(channel["least"] == 4 - channel["rank"].get<int>());
    if (channel["payload"] == "gradient") CHECK(channel["least"] == 1);
  }
  CHECK(json["least_slots"]["total"] == total);
}
