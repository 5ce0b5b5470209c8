#include "schedules/base/json.h"
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

/// With one device a stage, unless `more` says otherwise.
CommandResult plan(const std::vector<std::string>& more, const std::string& cluster = kCluster) {
  std::vector<std::string> arguments{"plan", "--profile", kProfile, "--cluster", cluster, "--no-replicate"};
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

TEST_CASE("plan --recompute plans with recomputation and says so", "[plan]") {
  const ScratchFolder folder;
  const std::string path = folder.path("plan.json");
  const CommandResult result = plan({"--micro-batch-size", "8", "--recompute", "all", "-o", path});
  REQUIRE(result.code == 0);
  CHECK(says(result.out, "4 stages, 1f1b with recomputation, 8 micro-batches"));
  CHECK(stagecraft::test::stagecraft({"check", path}).code == 0);
  const CommandResult simulated = stagecraft::test::stagecraft({"simulate", path});
  REQUIRE(simulated.code == 0);
  CHECK(says(simulated.out, "1f1b with recomputation, 4 stages on 4 ranks"));
  const CommandResult wrong = plan({"--micro-batch-size", "8", "--recompute", "al"});
  CHECK(wrong.code == 2);
  CHECK(says(wrong.err, "--recompute"));
  CHECK(says(wrong.err, "\"all_but_last\""));
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
  const CommandResult front = plan({"--pareto", "--schedule", "1f1b,fill_drain", "--micro-batches", "auto",
                                    "--batch", "64", "--svg", svg, "--json"});
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
  CHECK(Json::parse(front.out)["cap_step"] == 0.01);
  std::set<std::string> recomputed;
  for (const Json& choice : choices) recomputed.insert(choice["recompute"].get<std::string>());
  CHECK(recomputed.contains("none"));
  CHECK(recomputed.size() > 1);
  const CommandResult kept =
      plan({"--pareto", "--schedule", "1f1b", "--micro-batch-size", "8", "--recompute", "none", "--json"});
  REQUIRE(kept.code == 0);
  for (const Json& choice : Json::parse(kept.out)["choices"]) CHECK(choice["recompute"] == "none");

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

TEST_CASE("plan --jitter says how the best plans take to varying times", "[plan]") {
  const CommandResult text = plan({"--micro-batch-size", "8", "--jitter", "50"});
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(says(text.out, "half of the steps take up to"));
  CHECK(says(text.out, "p95 ms"));
  const CommandResult json =
      plan({"--micro-batch-size", "8", "--jitter", "50", "--choose-by", "p95", "--json"});
  REQUIRE(json.code == 0);
  const Json jitter = Json::parse(json.out)["jitter"];
  CHECK(jitter["p95_ms"] >= jitter["p50_ms"]);
  CHECK(plan({"--micro-batch-size", "8", "--choose-by", "p95"}).code == 2);
  CHECK(plan({"--micro-batch-size", "8", "--jitter", "0"}).code == 2);
  CHECK(plan({"--pareto", "--micro-batch-size", "8", "--jitter", "9"}).code == 2);
}

TEST_CASE("plan --explain says why, and what else would bring", "[plan]") {
  const CommandResult text = plan({"--micro-batch-size", "8", "--explain"});
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(says(text.out,
             "cut before layer 3 (block1.attention), where stage 1 begins; 512.0 KiB cross\n"
             "    a layer earlier  +16.5 %: stage 1 is the busiest then\n"));
  CHECK(says(text.out, "Where the step goes"));
  CHECK(says(text.out, "  1 device more "));
  CHECK(says(text.out, "  1 device fewer "));
  CHECK(says(text.out, "links between devices twice as fast (50.00 GB/s)"));
  CHECK(says(text.out, "16 micro-batches of 4"));

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

  // Cuts that memory holds where they are.
  const ScratchFolder folder;
  const std::string tight =
      folder.write("tight.json", R"({"levels": [{"count": 4, "link": {"latency_ms": 0.01,
      "bytes_per_second": 25e9}}], "memory_bytes": 39000000})");
  const CommandResult held = plan({"--micro-batch-size", "8", "--explain"}, tight);
  REQUIRE(held.code == 0);
  CHECK(says(held.out, "does not fit: stage 1 would need 42.2 MiB, 5.0 MiB more than a device has"));
  CHECK(says(held.out, "74.4 MiB a device"));

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
  refused({"--micro-batch-size", "8", "--widths", "3,2"}, "widths 3,2 need 5 devices, but the cluster has 4");
  refused({"--micro-batch-size", "8", "--widths", "0,2"}, "a stage has at least one replica, not 0");
  refused({"--micro-batch-size", "8", "--schedule", "pipedream", "--time-limit", "1"}, "has no flush");
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
  CHECK(says(result.err, "What would fit, each alone:"));
  CHECK(says(result.err, "\"memory_bytes\": "));
  CHECK_FALSE(says(result.err, ", with 1f1b"));
  const CommandResult several = plan({"--micro-batch-size", "8", "--schedule", "fill_drain,1f1b"}, tiny);
  CHECK(several.code == 3);
  CHECK(says(several.err, "fill_drain, 8 micro-batches of 8: nothing fits; 2 stages: "));
  CHECK(says(several.err, "of 33.8 MiB a device, with 1f1b and 8 micro-batches of 8"));
  const CommandResult searched = plan({"--micro-batch-size", "8", "--schedule", "auto"}, tiny);
  CHECK(searched.code == 3);
  CHECK(says(searched.err, ", with 1f1b and 8 micro-batches of 8"));
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

TEST_CASE("a plan with replicas is checked and simulated as it is", "[plan]") {
  const ScratchFolder folder;
  const std::string path = folder.path("plan.json");
  const CommandResult result = plan({"--micro-batch-size", "8", "--widths", "3,1", "-o", path});
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(says(result.out, "2 stages on 4 devices, 1f1b"));
  CHECK(says(result.out, "      0   0-2"));
  CHECK(says(result.out, "no plan's step is shorter: 1 layout searched"));
  CHECK(stagecraft::test::stagecraft({"check", path}).code == 0);
  CHECK(stagecraft::test::stagecraft({"simulate", path}).code == 0);
}
