#include "schedules/base/json.h"
#include "test/support/catch.h"
#include "test/support/command.h"

using stagecraft::Json;
using stagecraft::test::CommandResult;
using stagecraft::test::ScratchFolder;

namespace {

const std::string kProfile = STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json";
const std::string kCluster = STAGECRAFT_TEST_DATA "/../../configs/clusters/one-machine-4-pcie.json";

CommandResult plan(const std::vector<std::string>& more, const std::string& cluster = kCluster) {
  std::vector<std::string> arguments{"plan", "--profile", kProfile, "--cluster", cluster};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return stagecraft::test::stagecraft(arguments);
}

using stagecraft::test::says;

}  // namespace

TEST_CASE("plan prints its stages, its prediction and the runners-up, and writes a plan that check accepts",
          "[plan]") {
  const ScratchFolder folder;
  const std::string path = folder.path("plan.json");
  const CommandResult result = plan({"--micro-batch-size", "8", "-o", path});
  REQUIRE(result.code == 0);
  CHECK(result.err.empty());
  CHECK(says(result.out, "gpt 4x128 on 1x4 PCIe: 4 stages, 1f1b, 8 micro-batches of 8 samples a step"));
  CHECK(says(result.out, "embedding .. block0.feed_forward"));
  CHECK(says(result.out, "bound by  compute of stage 3"));
  CHECK(says(result.out, "  *       4"));
  CHECK(stagecraft::test::stagecraft({"check", path}).code == 0);
  CHECK(stagecraft::test::stagecraft({"simulate", path}).code == 0);
}

TEST_CASE("plan --json prints one document", "[plan]") {
  const CommandResult result = plan({"--micro-batch-size", "4", "--schedule", "pipedream", "--json"});
  REQUIRE(result.code == 0);
  const Json json = Json::parse(result.out);
  CHECK(json["plan"]["schedule"]["name"] == "pipedream");
  CHECK(json["others"].size() == 3);
  CHECK(json["infeasible"].empty());
}

TEST_CASE("plan over several schedules takes the fastest, --pareto shows time against memory", "[plan]") {
  const ScratchFolder folder;
  const std::string path = folder.path("plan.json");
  const CommandResult several = plan({"--micro-batch-size", "8", "--schedule", "1f1b,zb_h1", "-o", path});
  INFO(several.err);
  REQUIRE(several.code == 0);
  CHECK(says(several.out, "the fastest of each schedule"));
  CHECK(stagecraft::json::parse_file(path)["schedule"]["name"] == "zb_h1");
  CHECK(stagecraft::test::stagecraft({"check", path}).code == 0);

  const std::string svg = folder.path("front.svg");
  const CommandResult front =
      plan({"--pareto", "--micro-batches", "auto", "--batch", "64", "--svg", svg, "--json"});
  INFO(front.err);
  REQUIRE(front.code == 0);
  const Json choices = Json::parse(front.out)["choices"];
  REQUIRE(choices.size() > 1);
  for (std::size_t i = 1; i < choices.size(); ++i) {
    CHECK(choices[i]["step_ms"] > choices[i - 1]["step_ms"]);
    CHECK(choices[i]["memory_bytes"] < choices[i - 1]["memory_bytes"]);
    CHECK(choices[i]["micro_batches"].get<int>() * choices[i]["micro_batch_size"].get<int>() == 64);
  }
  CHECK(says(stagecraft::test::read_text_file(svg), "</svg>"));

  const auto refused = [](const std::vector<std::string>& more, const std::string& what) {
    const CommandResult result = plan(more);
    INFO(result.err);
    CHECK(result.code == 2);
    CHECK(says(result.err, what));
  };
  refused({"--micro-batches", "auto"}, "--batch");
  refused({"--micro-batches", "many", "--micro-batch-size", "8"}, "\"many\": expected 1 to");
  refused({"--micro-batches", "8x", "--micro-batch-size", "8"}, "\"8x\": expected 1 to");
  refused({"--batch", "64", "--micro-batch-size", "8"}, "for --micro-batches auto");
  refused({"--micro-batches", "auto", "--batch", "64", "--micro-batch-size", "8"}, "give one of the two");
  refused({"--micro-batches", "auto", "--batch", "1"}, "which is what was measured");
  refused({"--svg", svg, "--micro-batch-size", "8"}, "--pareto");
  refused({"--schedule", "1f1b,zb_h9", "--micro-batch-size", "8"}, "zb_h1");
}

TEST_CASE("plan --help names every schedule", "[plan]") {
  const CommandResult help = stagecraft::test::stagecraft({"plan", "--help"});
  for (const char* name : {"fill_drain", "1f1b", "pipedream"}) CHECK(says(help.out, name));
  CHECK(says(help.out, "PipeDream, SOSP 2019"));
}

TEST_CASE("plan --schema prints what each file may hold", "[plan]") {
  const auto required = [](const char* file) {
    const CommandResult result = stagecraft::test::stagecraft({"plan", "--schema", file});
    INFO(result.err);
    REQUIRE(result.code == 0);
    return Json::parse(result.out)["required"];
  };
  CHECK(required("profile") == Json{"measurements"});
  CHECK(required("cluster") == Json{"levels"});
  CHECK(required("plan") == Json{"stages", "schedule", "micro_batches", "micro_batch_size"});
  CHECK(stagecraft::test::stagecraft({"plan", "--schema", "run"}).code == 2);
}

TEST_CASE("the user's cuts are the plan's", "[plan]") {
  const CommandResult result = plan({"--micro-batch-size", "8", "--cuts", "1,4", "--json"});
  REQUIRE(result.code == 0);
  const Json json = Json::parse(result.out);
  CHECK(json["plan"]["stages"][1]["first_layer"] == 1);
  CHECK(json["plan"]["stages"][2]["first_layer"] == 4);
}

TEST_CASE("plan refuses what cannot be, with exit code 2", "[plan]") {
  const auto refused = [](const std::vector<std::string>& more, const std::string& message) {
    const CommandResult result = plan(more);
    CHECK(result.code == 2);
    CHECK(result.out.empty());
    INFO(result.err);
    CHECK(says(result.err, message));
  };
  refused({}, "choose --micro-batch-size 4 or 8");
  refused({"--micro-batch-size", "16"}, "no measurement of micro-batches of 16 samples, only of 4, 8");
  refused({"--micro-batch-size", "8", "--stages", "6"}, "has 4 devices");
  refused({"--micro-batch-size", "8", "--cuts", "3,2"}, "2 is out of place");
  refused({"--micro-batch-size", "8", "--schedule", "1f1"}, "--schedule: expected one of");
  refused({"--micro-batch-size", "8", "--vertical-sync"}, "vertical sync is for pipedream");
  refused({"--micro-batch-size", "8", "-o", "/nonexistent/plan.json"},
          "/nonexistent/plan.json: cannot be written");
}

TEST_CASE("where nothing fits, plan says what misses and by how much, with exit code 3", "[plan]") {
  const ScratchFolder folder;
  const std::string tiny = folder.write("tiny.json", R"({"levels": [{"count": 2, "link": {"latency_ms": 0.01,
      "bytes_per_second": 1e9}}], "memory_bytes": 20971520})");
  const CommandResult result = plan({"--micro-batch-size", "8"}, tiny);
  CHECK(result.code == 3);
  CHECK(says(result.err, "no plan fits"));
  CHECK(says(result.err, "more than the 20.0 MiB a device has to give"));
}
