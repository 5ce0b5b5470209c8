#include "base/files.h"
#include "base/json.h"
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
