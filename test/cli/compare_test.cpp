// `compare`, where no golden says it: options that contradict each other, and a plan that carries its order.

#include "base/json.h"
#include "test/cli/sample_plan.h"
#include "test/support/catch.h"
#include "test/support/command.h"

using stagecraft::Json;
using stagecraft::test::changed_plan;
using stagecraft::test::CommandResult;
using stagecraft::test::even_costs;
using stagecraft::test::says;
using stagecraft::test::ScratchFolder;

namespace {

Json compared(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "compare");
  arguments.emplace_back("--json");
  const CommandResult result = stagecraft::test::stagecraft(arguments);
  INFO(result.err);
  REQUIRE(result.code == 0);
  return Json::parse(result.out);
}

}  // namespace

TEST_CASE("compare says which options contradict each other", "[compare]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, even_costs);
  const auto refused = [](std::vector<std::string> arguments, const std::string& answer) {
    arguments.insert(arguments.begin(), "compare");
    const CommandResult wrong = stagecraft::test::stagecraft(arguments);
    INFO(arguments.back() << ": " << wrong.err);
    CHECK(wrong.code == 2);
    CHECK(wrong.out.empty());
    CHECK(says(wrong.err, answer));
  };
  refused({plan, "--pareto"}, "its stages stay");
  refused({plan, "-o", "new.json"}, "its stages stay");
  refused({plan, "--micro-batches", "auto"}, "auto is for planning");
  refused({plan, "--set", "seed=1"}, "--set: is for the keys of a run config, and " + plan + " is none");
  refused({"--unit-costs"}, "stagecraft compare PLAN");
  refused({"--profile", "a.json"}, "--cluster is missing");
}

TEST_CASE("compare PLAN leaves the order that a plan carries to its own schedule", "[compare]") {
  const ScratchFolder folder;
  const std::string path = folder.path("searched.json");
  const CommandResult planned = stagecraft::test::stagecraft(
      {"plan", "--profile", STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json", "--cluster",
       STAGECRAFT_TEST_DATA "/../../configs/clusters/one-machine-4-pcie.json", "--micro-batch-size", "4",
       "--micro-batches", "8", "--stages", "4", "--schedule", "auto", "--no-replicate", "-o", path});
  REQUIRE(planned.code == 0);
  const Json json = compared({path, "--schedules", "fill_drain,auto"});
  const auto step = [&](std::size_t row) { return json["schedules"][row]["time_ms"].get<double>(); };
  CHECK(step(1) < step(0));
}
