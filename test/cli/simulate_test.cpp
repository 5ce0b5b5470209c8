#include "base/json.h"
#include "base/table.h"
#include "test/cli/sample_plan.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <algorithm>

using stagecraft::Json;
using stagecraft::test::CommandResult;
using stagecraft::test::kPlan;
using stagecraft::test::read_text_file;
using stagecraft::test::ScratchFolder;

namespace {

CommandResult simulate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "simulate");
  return stagecraft::test::stagecraft(arguments);
}

using stagecraft::test::says;

}  // namespace

TEST_CASE("simulate draws nothing beside a document", "[simulate]") {
  CHECK(simulate({kPlan, "--text", "--json"}).out == simulate({kPlan, "--json"}).out);
}

TEST_CASE("simulate draws the memory whose peak check proves", "[simulate]") {
  const ScratchFolder folder;
  const std::string svg = folder.path("t.svg");
  const Json checked = Json::parse(stagecraft::test::stagecraft({"check", kPlan, "--json"}).out);
  REQUIRE(simulate({kPlan, "--svg", svg}).code == 0);
  std::int64_t peak = 0;
  for (const Json& rank : checked["memory"]) peak = std::max(peak, rank["peak_bytes"].get<std::int64_t>());
  CHECK(says(read_text_file(svg), "peak " + stagecraft::format_bytes(stagecraft::Bytes{peak}) + " on rank "));
}
